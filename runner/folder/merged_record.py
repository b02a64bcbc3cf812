"""What all journals of a folder say together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from runner.folder.accounting import Spent
from runner.folder.done_images import Done, DoneImages
from runner.launch.pulse import Pulse
from runner.plan import Fingerprints, Plan

__all__ = [
    "DONE",
    "FAILED",
    "LEFT",
    "LOST",
    "SKIPPED",
    "Account",
    "Failed",
    "Fault",
    "MergedRecord",
]

LEFT, DONE, FAILED, SKIPPED = range(4)  # the states of an image; skipped: left out on purpose
KEPT_OUT = {"skip": ("skipped", SKIPPED), "fail": ("flagged", FAILED)}  # by `on_flagged`
SPARE = 1_000_000
LOST = "replica-lost"  # the kind of failure of an image that ended its replica


class Failed(NamedTuple):
    """An image that could not be made: `kind` is a word for machines, `error` a line."""

    fingerprint: str
    kind: str
    error: str
    generation: int


class Fault(NamedTuple):
    """An error with its traceback; `number` counts those of a launch in the order they came."""

    number: int
    rank: int
    error: str
    trace: str


@dataclass(slots=True)
class Account:
    """What the ranks of one launch recorded about themselves."""

    first: Fault | None = None
    errors: list[str] = field(default_factory=list)  # that ended a rank
    gave_up: bool = False  # a rank stopped making images, and a new one would, too
    pulses: list[Pulse] = field(default_factory=list)  # the last one of each rank


class MergedRecord:
    """All journals of a folder, merged, for a plan of `total` images; images past its end are kept,
    too. Later generations win; within one, done beats failed and void. The order of reading does
    not matter."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.most = 2 * total + SPARE  # a bound for the memory that broken journals can take
        self.done = DoneImages(total)
        self.failed: dict[int, Failed] = {}
        self.moved: dict[int, int] = {}  # place → generation in which another file came there
        self.unclean: set[str] = set()  # journals without their last line, and not verified since
        self.verified: set[str] = set()  # journals whose files were read whole by a later launch
        self.kept_out: dict[int, Failed] = {}  # done, but flagged, which the manifest rejects
        self.accounts: dict[str, Account] = {}  # launch → account
        self.spent: dict[str, Spent] = {}  # launch → what it cost and made
        self.journals: dict[str, int] = {}  # name → bytes read
        self.lines = 0  # about images
        self.generation = 0  # the latest
        self.launch = ""  # one of the latest generation

    def account(self, launch: str) -> Account:
        return self.accounts.setdefault(launch, Account())

    def add_spent(self, spent: Spent) -> None:
        known = self.spent.get(spent.launch)
        if known is None or known.seconds <= spent.seconds:
            self.spent[spent.launch] = spent

    def add_done(self, index: int, done: Done) -> None:
        """Raises ValueError for an image far beyond the plan."""
        source = self.done.source_number(done.journal, done.generation)
        made = msgspec.json.encode(done.made)
        self.put_done(index, done.fingerprint, done.size, done.crc, made, source)

    def put_done(
        self, index: int, fingerprint: str, size: int, crc: int, made: bytes, source: int
    ) -> None:
        """As `add_done`; `made` and `source` as `DoneImages.put` takes them."""
        self._count(index)
        if self.moved.get(index, -1) > self.done.source_generation(source):
            return
        self.moved.pop(index, None)
        is_kept = self.done.put(index, bytes.fromhex(fingerprint), size, crc, made, source)
        failed = self.failed.get(index)
        if is_kept and failed is not None and failed.generation <= self.done.generation(index):
            del self.failed[index]

    def add_failed(self, index: int, failed: Failed) -> None:
        """Raises ValueError as `add_done` does."""
        self._count(index)
        known = self.failed.get(index)
        if self.done.generation(index) >= failed.generation:
            return
        if known is None or known.generation <= failed.generation:
            self.failed[index] = failed

    def void(self, indices: Sequence[int], generation: int) -> None:
        """What earlier generations say about these places is about files that were moved."""
        for index in indices:
            self._count(index)
            if self.done.generation(index) < generation:
                self.done.remove(index)
                self.moved[index] = max(generation, self.moved.get(index, -1))

    def states(self, plan: Plan, fingerprints: Fingerprints, sizes: Sequence[int]) -> bytearray:
        """The state of each image of the plan. It is done where a journal says so with the plan's
        fingerprint and the size of its file; `sizes` are below 0 where there is no file. Fills
        `kept_out`: the same picture would come out again, so such images are not made anew."""
        states = bytearray(len(plan))
        policy = plan.manifest.on_flagged
        self.kept_out.clear()
        for task in plan.tasks():
            size, failed = sizes[task.index], self.failed.get(task.index)
            if size < 0 and failed is None:
                continue
            fingerprint = fingerprints.digest(task)
            if self.done.matches(task.index, fingerprint, size):
                states[task.index] = self.state_of_done(task.index, plan)
            elif failed is not None and failed.fingerprint == fingerprint.hex():
                is_skip = failed.kind == "skipped" and policy == "skip"
                states[task.index] = SKIPPED if is_skip else FAILED
        return states

    def state_of_done(self, index: int, plan: Plan) -> int:
        """The state of an image whose file is there; fills `kept_out`."""
        policy = plan.manifest.on_flagged
        flag = "" if policy == "keep" else self.done.flag(index)
        if not flag:
            return DONE
        kind, state = KEPT_OUT[policy]
        done = self.done[index]
        self.kept_out[index] = Failed(done.fingerprint, kind, f"flagged: {flag}", done.generation)
        return state

    def states_by_journals(self) -> bytearray:
        """The states as the journals alone have them, whatever the plan and the files say."""
        states = bytearray(self.total)
        for state, indices in ((FAILED, self.failed), (DONE, self.done)):
            for index in indices:
                if index < self.total:
                    states[index] = state
        return states

    def _count(self, index: int) -> None:
        """Raises ValueError for an image far beyond the plan."""
        self.lines += 1
        if not 0 <= index < self.most:
            raise ValueError(index)
