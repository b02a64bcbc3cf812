#!/bin/bash
# Made by: python -m runner slurm manifests/job.yaml --gpus-per-node=8 --time=04:00:00 --array=4
# Submit it with the runner's Python environment active: Slurm passes the environment on.
#SBATCH --job-name=job
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-gpu=4
#SBATCH --time=04:00:00
#SBATCH --array=1-4
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.out

job=(manifests/job.yaml)
job+=(--shard "$SLURM_ARRAY_TASK_ID/4")
stop=outputs/job/.runner/stop-$SLURM_ARRAY_TASK_ID-of-4

# Slurm signals only this shell, some time before the limit, and sends CONT right after. A handler
# that runs a program can be lost then, so this one uses only builtins.
signalled=
on_signal() { signalled=yes; : > "$stop"; }
trap on_signal USR1 TERM

rm -f "$stop"  # left by an earlier job
for try in 1 2 3; do
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 python -m torch.distributed.run \
        --standalone --max-restarts=3 \
        --nproc-per-node=8 \
        -m runner "${job[@]}" &
    step=$!
    wait "$step"  # a signal also ends this wait
    for ((waited = 0; waited < 80; waited++)); do
        kill -0 "$step" 2> /dev/null || break
        # Every second: a runner that is just starting removes an old stop file.
        [[ $signalled ]] && : > "$stop"
        sleep 1
    done
    # The launcher exits with 1 for any error, so ask the folder.
    python -m runner status "${job[@]}" --exit-code
    code=$?
    if ((code != 75)); then
        exit "$code"
    elif [[ $signalled ]]; then
        break
    elif [[ -e $stop ]]; then
        echo "stopped on request; submit again to go on"
        exit 1
    fi
    # A process died. Try the missing images again.
done
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
id=${id:-$SLURM_JOB_ID}
# For Slurm, a job that was cancelled or preempted is over: requeueing it here would undo that.
scontrol show job -o "$id" | grep -q " JobState=RUNNING " || exit 1
if [[ ! $signalled ]] && ((SECONDS < 600)); then
    echo "died $try times in $SECONDS seconds; see the errors above"
    exit 1
fi
if scontrol show config | grep -Eq '^RequeueExit += .*\b75\b'; then
    exit 75
fi
scontrol requeue "$id"
