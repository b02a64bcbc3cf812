"""Every error that the user reads as one line, without a traceback.

RunnerError                    exit 1
├── RefusedError               exit 2: before work began, or while the model was loaded
│   ├── ManifestError          the manifest, a prompt file, --set: all problems at once
│   ├── LaunchError            arguments, launcher variables, devices
│   ├── ModelError             not found, gated, pickled, or it does not take a parameter
│   │   └── OfflineError       not in the cache, and the hub cannot be reached
│   ├── StrategyError          a strategy's preconditions
│   └── FolderError            the output folder: foreign files, another job, changed images
├── GaveUpError                exit 3: too many faults in a row, so this rank stops
├── DiskError                  exit 1: no space, read-only, broken: the work stops
├── ReplicaLostError           exit 1: a rank failed while the others of its replica wait for it
└── InterruptedRunError        exit 75: ended before every image was made; run again to go on
    └── TakenOverError         another job took the folder over while this one was paused
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from runner.units import counted

__all__ = [
    "DiskError",
    "ExitCode",
    "FolderError",
    "GaveUpError",
    "InterruptedRunError",
    "LaunchError",
    "ManifestError",
    "ModelError",
    "OfflineError",
    "Problem",
    "RefusedError",
    "ReplicaLostError",
    "RunnerError",
    "StrategyError",
    "TakenOverError",
    "already_printed",
]


class ExitCode(IntEnum):
    """What a process of the runner returns (torchrun itself returns 1 for any but 0)."""

    COMPLETE = 0
    ERROR = 1
    REFUSED = 2
    FAILED = 3
    INCOMPLETE = 75


class RunnerError(Exception):
    """Something that the user should read as one line, without a traceback."""

    exit_code = ExitCode.ERROR
    is_printed = False  # by another process of the launch, so this one prints nothing


class RefusedError(RunnerError):
    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in a manifest: where it is, what is wrong, and what to do about it."""

    place: str  # "manifests/job.yaml:7", "--set seed=x"
    message: str

    def __str__(self) -> str:
        """One line: a line end in a value is shown as \\n."""
        return f"{self.place}: {self.message}".replace("\n", "\\n")


class ManifestError(RefusedError):
    """All faults of a manifest or a prompt file, one line each."""

    shown = 50

    def __init__(self, problems: Sequence[Problem], more: int = 0) -> None:
        """`more` faults were not put into words."""
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[: self.shown]]
        more += max(0, len(self.problems) - self.shown)
        if more:
            lines.append(f"… and {counted(more, 'more problem')}")
        super().__init__("\n".join(lines))


class LaunchError(RefusedError):
    pass


class ModelError(RefusedError):
    pass


class OfflineError(ModelError):
    pass


class StrategyError(RefusedError):
    pass


class FolderError(RefusedError):
    pass


class DiskError(RunnerError, OSError):
    """`DiskError(errno, "path: words")`."""

    def __str__(self) -> str:
        return f"{self.args[-1]}; free the disk or mend it, then run the same command again"


class ReplicaLostError(RunnerError):
    """The other ranks of the replica wait in a collective: only ending their processes helps."""


class GaveUpError(RunnerError):
    exit_code = ExitCode.FAILED


class InterruptedRunError(RunnerError):
    exit_code = ExitCode.INCOMPLETE


class TakenOverError(InterruptedRunError):
    pass


def already_printed(message: str, exit_code: int) -> RunnerError:
    """An error of another process, to raise in this one too: same exit code, not printed again."""
    error = RunnerError(message)
    error.exit_code = ExitCode(exit_code)
    error.is_printed = True
    return error
