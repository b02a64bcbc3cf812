"""The `slurm` command: a batch script that runs a manifest and is requeued until it is complete."""

import dataclasses
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import LaunchError

__all__ = ["Request", "minutes_of", "script", "submit"]

TEMPLATE = Path(__file__).with_name("job.sh.j2")
TIME = re.compile(r"[0-9]+((:[0-9]{2}){0,2}|-[0-9]+(:[0-9]{2}){0,2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to ask Slurm for; each field is an option of the command line.

    Raises LaunchError where the values do not fit together.
    """

    nodes: int = 1
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
                f"--time {self.time}: not longer than --signal-lead-s {self.signal_lead_s}, so the "
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
    """The minutes in any of Slurm's forms: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
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
    """The batch script; `arguments` are --set and --output as the user gave them."""
    import jinja2

    # `finalize` sees every value that the template prints: none reaches bash unquoted.
    environment = jinja2.Environment(
        finalize=_quoted,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    start = ["python", "-m", "runner", "slurm", str(manifest)]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        command=[*start, *_options(request), *arguments],
        job=[str(manifest), *arguments],
        job_name=re.sub(r"[^A-Za-z0-9._-]", "_", manifest.stem),
        output=output,
        request=request,
        # How long the launcher may take to end. A step that hangs ends with the requeue.
        patience_s=request.signal_lead_s * 2 // 3,
    )


def submit(text: str) -> str:
    """Give the script to sbatch and return its answer. Raises LaunchError with sbatch's error."""
    import subprocess

    try:
        done = subprocess.run(["sbatch"], input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LaunchError("--submit: no sbatch on this machine; save the script instead") from None
    if done.returncode:
        raise LaunchError(f"sbatch: {done.stderr.strip()}")
    return done.stdout.strip()


def _options(request: Request) -> list[str]:
    """The options that differ from their defaults, as on the command line."""
    values = [(field, getattr(request, field.name)) for field in dataclasses.fields(request)]
    return [
        f"--{field.name.replace('_', '-')}={value}"
        for field, value in values
        if value != field.default
    ]


def _quoted(value: object) -> str:
    """One word for bash, or the words of a list. Control characters become escapes: the script may
    be printed on a terminal, and its comments are single lines."""
    if isinstance(value, list):
        return " ".join(map(_quoted, value))
    text = str(value)
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
