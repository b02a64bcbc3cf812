"""What became of a pipeline class, a scheduler or a strategy: equal, refused, or a fault."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.conformance import Case, Fault, Made, Plain, Refused, check, difference, launch, plain
from support.launches import Launcher

__all__ = ["Finding", "look", "look_at_strategy"]

MIN_TEXT = 4  # of 255: a text that changes less than this would hide a wrong text


@dataclass(frozen=True, slots=True)
class Finding:
    """`outcome` is "equal", "batch 1" (equal there; a batch is refused, or is not one), "refused"
    or "fault"; `reason` is for the last three."""

    outcome: str
    reason: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome != "fault"

    def values(self) -> dict[str, Any]:
        return asdict(self)


def look(ranks: Launcher, case: Case, folder: Path) -> Finding:
    """One and two processes, batch sizes 1 and 3, beside plain diffusers. What diffusers cannot
    make, `plan` must refuse."""
    try:
        expected = plain(ranks, case, folder / "plain")
    except Fault as fault:
        return _refusal(ranks, case, folder / "plan", str(fault))
    try:
        if expected.text < MIN_TEXT:
            raise Fault(f"the tiny model is too dull: another text changes {expected.text} of 255")
        _same(ranks, case, folder / "one", expected, batch_size=1)
    except Refused as refusal:
        return Finding("refused", str(refusal))
    except Fault as fault:
        return Finding("fault", str(fault))
    return _batch(ranks, case, folder / "three", expected)


def _refusal(ranks: Launcher, case: Case, folder: Path, why: str) -> Finding:
    try:
        check(ranks, case.manifest(folder))
    except Refused as refusal:
        return Finding("refused", str(refusal))
    except Fault as fault:
        return Finding("fault", str(fault))
    return Finding("fault", f"plan accepts it; {why}")


def _batch(ranks: Launcher, case: Case, folder: Path, expected: Plain) -> Finding:
    """Equal where diffusers' own batches are, too."""
    try:
        found = _same(ranks, case, folder, expected, batch_size=3)
    except Refused as refusal:
        return Finding("batch 1", str(refusal))
    except Fault as fault:
        words = f"batch of 3: {fault}"
        why = f" (as in diffusers: {expected.batch})" if expected.batch else ""
        return Finding("fault", f"{words}{why}")
    if expected.batch:
        return Finding("batch 1", f"diffusers, batch of 3: {expected.batch}")
    if found.records[0]["batch_size"] != 3:
        return Finding("batch 1", "the runner makes no batches of it")
    return Finding("equal")


def _same(ranks: Launcher, case: Case, folder: Path, expected: Plain, **settings: Any) -> Made:
    """One process and two make what is expected, and the same. Raises Refused or Fault."""
    found = [
        launch(ranks, case.manifest(folder / f"n{processes}", **settings), processes)
        for processes in (1, 2)
    ]
    for one in found:
        difference(one, expected.made)
    for left, right in zip(found[0].images, found[1].images, strict=True):
        if (left != right).any():
            raise Fault("one process and two make images that are not bit by bit the same")
    return found[0]


def look_at_strategy(
    ranks: Launcher, case: Case, folder: Path, expected: Plain, *strategies: dict[str, Any]
) -> Finding:
    """All of them, one image a batch; the first that is refused or wrong counts."""
    return _first(
        lambda strategy, place: difference(
            launch(ranks, case.manifest(folder / str(place), strategy=strategy)), expected.made
        ),
        strategies,
    )


def _first(act: Callable[[dict[str, Any], int], Any], strategies: Any) -> Finding:
    for place, strategy in enumerate(strategies):
        try:
            act(strategy, place)
        except Refused as refusal:
            return Finding("refused", str(refusal))
        except Fault as fault:
            return Finding("fault", f"{strategy}: {fault}")
    return Finding("equal")
