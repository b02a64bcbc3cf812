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
ARGUMENT = re.compile(r"--(?P<name>[a-z][a-z-]*)(=.+)?", re.ASCII)
SET_HERE = (
    *("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "cpus-per-gpu", "time"),
    *("array", "signal", "requeue", "no-requeue", "open-mode"),
)
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
    account: str | None = None
    qos: str | None = None
    sbatch_arg: tuple[str, ...] = ()
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
        for key in ("partition", "account", "qos"):
            name = getattr(self, key)
            if name is not None and not re.fullmatch(r"[\w.,+-]+", name):
                what = {"partition": "a partition", "account": "an account", "qos": "a QOS"}[key]
                raise LaunchError(f"--{key} {name!r}: not the name of {what}")
        for argument in self.sbatch_arg:
            _check_argument(argument)
        if self.array is not None and self.nodes != 1:
            raise LaunchError(
                f"--array {self.array} makes one-node jobs; use --nodes 1, or no --array for one "
                f"job over {self.nodes} nodes"
            )


def _check_argument(argument: str) -> None:
    """Raises LaunchError for what is no option of sbatch, and for what the script sets itself."""
    found = ARGUMENT.fullmatch(argument)
    if found is None or not argument.isprintable():
        raise LaunchError(
            f"--sbatch-arg {argument[:80]!r}: not an option of sbatch; write for example "
            f"--sbatch-arg=--constraint=h100"
        )
    if found["name"] in SET_HERE:
        raise LaunchError(f"--sbatch-arg {argument}: the script sets --{found['name']} itself")


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
        raise LaunchError(f"sbatch: {done.stderr.strip()}{_array_limit(done.stderr)}")
    return done.stdout.strip()


def _array_limit(error: str) -> str:
    """How large an array may be, where sbatch refused one without saying so."""
    if "Invalid job array specification" not in error:
        return ""
    import subprocess

    shown = subprocess.run(
        ["scontrol", "show", "config"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", shown)
    if found is None:
        return "; the site's MaxArraySize limits --array: use fewer, larger parts"
    most = int(found[1]) - 1
    return (
        f"; this site takes --array {most} at most (MaxArraySize {found[1]}): use fewer, larger "
        f"parts, each goes on where it stopped"
    )


def _options(request: Request) -> list[str]:
    """The options that differ from their defaults, as on the command line."""
    values = [(field, getattr(request, field.name)) for field in dataclasses.fields(request)]
    return [
        f"--{field.name.replace('_', '-')}={one}"
        for field, value in values
        if value != field.default
        for one in (value if isinstance(value, tuple) else [value])
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
