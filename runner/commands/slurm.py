"""The `slurm` command: a batch script that runs a manifest, is requeued until it is complete."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import LaunchError

__all__ = ["Request", "minutes_of", "script", "submit"]

TIME = re.compile(r"[0-9]+((:[0-9]{2}){0,2}|-[0-9]+(:[0-9]{2}){0,2})")


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask Slurm for. Raises LaunchError where the parts do not fit together."""

    nodes: int
    gpus_per_node: int
    time: str
    cpus_per_gpu: int = 4
    partition: str | None = None
    array: int | None = None
    signal_lead_s: int = 120

    def __post_init__(self) -> None:
        if not TIME.fullmatch(self.time):
            raise LaunchError(f"--time {self.time}: write minutes, HH:MM:SS or D-HH:MM:SS")
        if 60 * minutes_of(self.time) <= self.signal_lead_s:
            raise LaunchError(
                f"--time {self.time}: no longer than --signal-lead-s {self.signal_lead_s}, so the "
                f"job would be asked to stop at once; use a longer time or a shorter lead"
            )
        if self.partition and not re.fullmatch(r"[\w.,+-]+", self.partition):
            raise LaunchError(f"--partition {self.partition!r}: not the name of a partition")
        if self.array is not None and self.nodes != 1:
            raise LaunchError(
                f"--array {self.array} makes one-node jobs; use --nodes 1, or no --array for one "
                f"job over {self.nodes} nodes"
            )


def minutes_of(time: str) -> float:
    """Slurm's forms: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return 24 * 60 * int(days or 0) + 60 * hours + minutes + seconds / 60


def script(manifest: Path, output: Path, arguments: Sequence[str], request: Request) -> str:
    """The batch script; `arguments` are --set and --output as given."""
    words = ["python", "-m", "runner", "slurm", str(manifest), *_options(request), *arguments]
    part = "$SLURM_ARRAY_TASK_ID-of-" + str(request.array)
    return _SCRIPT.format(
        made_by=" ".join(shlex.join(words).split()),  # one line: it stands in a comment
        directives="\n".join(f"#SBATCH {line}" for line in _directives(manifest, request)),
        arguments=shlex.join([str(manifest), *arguments]),
        output=shlex.quote(str(output)),
        stop=f"stop-{part}" if request.array else "stop",
        shard=_SHARD.format(parts=request.array) if request.array else "",
        launch=_launch(request),
        # For the launcher to end in; a step that hangs is ended by the requeue.
        patience=request.signal_lead_s * 2 // 3,
    )


def submit(text: str) -> str:
    """Give the script to sbatch; its answer. Raises LaunchError with sbatch's own words."""
    try:
        done = subprocess.run(["sbatch"], input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LaunchError("--submit: no sbatch on this machine; save the script instead") from None
    if done.returncode:
        raise LaunchError(f"sbatch: {done.stderr.strip()}")
    return done.stdout.strip()


def _options(request: Request) -> list[str]:
    words = [f"--nodes={request.nodes}", f"--gpus-per-node={request.gpus_per_node}"]
    words.append(f"--time={request.time}")
    if request.cpus_per_gpu != 4:
        words.append(f"--cpus-per-gpu={request.cpus_per_gpu}")
    if request.partition:
        words.append(f"--partition={request.partition}")
    if request.array:
        words.append(f"--array={request.array}")
    if request.signal_lead_s != 120:
        words.append(f"--signal-lead-s={request.signal_lead_s}")
    return words


def _directives(manifest: Path, request: Request) -> list[str]:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", manifest.stem)
    lines = [f"--job-name={name}", f"--nodes={request.nodes}", "--ntasks-per-node=1"]
    lines += [f"--gpus-per-node={request.gpus_per_node}", f"--cpus-per-gpu={request.cpus_per_gpu}"]
    lines.append(f"--time={request.time}")
    if request.partition:
        lines.append(f"--partition={request.partition}")
    if request.array:
        lines.append(f"--array=1-{request.array}")
    lines += [f"--signal=B:USR1@{request.signal_lead_s}", "--requeue", "--open-mode=append"]
    lines.append(f"--output=slurm-{'%A_%a' if request.array else '%j'}.out")
    return lines


def _launch(request: Request) -> str:
    lines = ["srun --ntasks-per-node=1 --kill-on-bad-exit=1 python -m torch.distributed.run"]
    if request.nodes > 1:
        lines.append(f"--nnodes={request.nodes} --rdzv-backend=c10d")
        lines.append('--rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):$port"')
    else:
        # Over several nodes a launcher that restarts waits for those that have ended.
        lines.append("--standalone --max-restarts=3")
    lines.append(f"--nproc-per-node={request.gpus_per_node}")
    lines.append('-m runner "${job[@]}" &')
    return " \\\n        ".join(lines)


_SHARD = """
job+=(--shard "$SLURM_ARRAY_TASK_ID/{parts}")"""

_SCRIPT = """\
#!/bin/bash
# Made by: {made_by}
# Submit it with the Python environment of the runner active: Slurm hands the environment on.
{directives}

job=({arguments}){shard}
stop={output}/.runner/{stop}
# The same for all tasks of this job, another one for its neighbours on the node.
port=$((20000 + SLURM_JOB_ID % 20000))

# Slurm signals this shell alone, some time before the limit, and CONT follows at once: a handler
# that runs a command can be lost then, so it is made of builtins.
signalled=
on_signal() {{ signalled=yes; : > "$stop"; }}
trap on_signal USR1 TERM

rm -f "$stop"  # of an earlier job: this one is to go on
for try in 1 2 3; do
    {launch}
    step=$!
    wait "$step"  # returns at a signal, too
    for ((waited = 0; waited < {patience}; waited++)); do
        kill -0 "$step" 2> /dev/null || break
        # Again and again: a runner that is just starting removes an old stop file.
        [[ $signalled ]] && : > "$stop"
        sleep 1
    done
    # The launcher answers 1 for everything, so the folder is asked.
    python -m runner status "${{job[@]}}" --exit-code
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
id=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
id=${{id:-$SLURM_JOB_ID}}
# A job that was cancelled or preempted is over for Slurm: to requeue it here would undo that.
scontrol show job -o "$id" | grep -q " JobState=RUNNING " || exit 1
if [[ ! $signalled ]] && ((SECONDS < 600)); then
    echo "died $try times in $SECONDS seconds; see the errors above"
    exit 1
fi
if scontrol show config | grep -Eq '^RequeueExit += .*\\b75\\b'; then
    exit 75
fi
scontrol requeue "$id"
"""
