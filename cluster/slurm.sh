#!/bin/bash
# Made by: python -m runner slurm manifests/job.yaml --nodes=2 --gpus-per-node=8 --time=04:00:00
# Submit it with the Python environment of the runner active: Slurm hands the environment on.
#SBATCH --job-name=job
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-gpu=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out

job=(manifests/job.yaml)
stop=outputs/job/.runner/stop
# The same for all tasks of this job, another one for its neighbours on the node.
port=$((20000 + SLURM_JOB_ID % 20000))

# Slurm signals this shell alone, some time before the limit, and CONT follows at once: a handler
# that runs a command can be lost then, so it is made of builtins.
signalled=
on_signal() { signalled=yes; : > "$stop"; }
trap on_signal USR1 TERM

rm -f "$stop"  # of an earlier job: this one is to go on
for try in 1 2 3; do
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 python -m torch.distributed.run \
        --nnodes=2 --rdzv-backend=c10d \
        --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):$port" \
        --nproc-per-node=8 \
        -m runner "${job[@]}" &
    step=$!
    wait "$step"  # returns at a signal, too
    for ((waited = 0; waited < 80; waited++)); do
        kill -0 "$step" 2> /dev/null || break
        # Again and again: a runner that is just starting removes an old stop file.
        [[ $signalled ]] && : > "$stop"
        sleep 1
    done
    # The launcher answers 1 for everything, so the folder is asked.
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
    # Something died, and the images that are missing are worth another try.
done
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
id=${id:-$SLURM_JOB_ID}
# A job that was cancelled or preempted is over for Slurm: to requeue it here would undo that.
scontrol show job -o "$id" | grep -q " JobState=RUNNING " || exit 1
if [[ ! $signalled ]] && ((SECONDS < 600)); then
    echo "died $try times in $SECONDS seconds; see the errors above"
    exit 1
fi
if scontrol show config | grep -Eq '^RequeueExit += .*\b75\b'; then
    exit 75
fi
scontrol requeue "$id"
