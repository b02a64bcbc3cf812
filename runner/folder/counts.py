"""How many images of a plan are done, failed and left, and what that means for the job."""

from __future__ import annotations  # before Python 3.12, array[int] works in annotations alone

import collections
import itertools
from array import array
from dataclasses import dataclass, field
from typing import Literal

from runner.errors import ExitCode
from runner.folder.journal import journal_launch
from runner.folder.merged_record import DONE, FAILED, LEFT, SKIPPED, Account, MergedRecord

__all__ = ["Counts", "Launch", "Outcome", "count", "exit_code", "is_over", "outcome"]

Outcome = Literal["running", "complete", "failed", "interrupted", "limited"]


@dataclass(slots=True)
class Launch:
    """What summary.json says about a launch."""

    id: str
    generation: int
    world_size: int = 1
    replicas: int = 1
    strategy: str = ""
    shard: str = ""  # 3/8, with --shard
    started: float = 0.0  # seconds since 1970
    choice: str = ""  # what `auto` chose and why
    batch_sizes: dict[str, int] = field(default_factory=dict)  # that `auto` found
    seconds: float | None = None  # until its end; None where it was killed

    def made(self, journal: str, generation: int) -> bool:
        """Whether this launch made the image that a journal has. Both must match: a sibling shard
        may have the same generation, and the survey of this launch has another."""
        return generation == self.generation and journal_launch(journal) == self.id


@dataclass(slots=True)
class Counts:
    """How many images of a plan are in which state."""

    total: int
    done: int = 0
    failed: int = 0
    failed_now: int = 0  # of the failed: in this launch or after it
    skipped: int = 0  # flagged, and the manifest says on_flagged: skip
    made: int = 0  # of the done: by this launch
    wanted: int = 0  # those that --limit and --shard leave to this launch
    left: int = 0  # of the wanted: neither done nor skipped
    left_failed: int = 0  # of the left: failed
    truncated: array[int] = field(default_factory=lambda: array("Q"))  # done, with a text cut
    flagged: array[int] = field(default_factory=lambda: array("Q"))  # done: black, or unsafe


def count(states: bytearray, record: MergedRecord, wanted: bytearray, launch: Launch) -> Counts:
    """`states` are those of a record or a survey; `wanted` is that of `wanted_images`."""
    of_wanted = collections.Counter(itertools.compress(states, wanted))
    counts = Counts(
        total=len(states),
        done=states.count(DONE),
        failed=states.count(FAILED),
        skipped=states.count(SKIPPED),
        wanted=of_wanted.total(),
        left=of_wanted[LEFT] + of_wanted[FAILED],
        left_failed=of_wanted[FAILED],
    )
    counts.failed_now = sum(
        states[index] == FAILED and failed.generation >= launch.generation
        for index, failed in record.failed.items()
        if index < len(states)
    )
    for index, state in enumerate(states):
        if state == DONE:
            counts.made += launch.made(*record.done.source(index))
            if record.done.is_truncated(index):
                counts.truncated.append(index)
            if record.done.flag(index):
                counts.flagged.append(index)
    return counts


def is_over(counts: Counts, account: Account, max_failures: int | None) -> bool:
    """Whether the launch makes no more images, though some are left."""
    return account.gave_up or (max_failures is not None and counts.failed_now >= max_failures)


def outcome(counts: Counts, *, gave_up: bool = False) -> Outcome:
    """The outcome when no process works any more; `gave_up` is what `is_over` says."""
    if counts.done + counts.skipped == counts.total:
        return "complete"
    if not counts.left:
        return "limited"
    return "failed" if gave_up or counts.left == counts.left_failed else "interrupted"


def exit_code(outcome: Outcome) -> ExitCode:
    if outcome in ("complete", "limited"):
        return ExitCode.COMPLETE
    return ExitCode.FAILED if outcome == "failed" else ExitCode.INCOMPLETE
