"""What became of a pipeline class, a scheduler or a strategy: equal, refused, or a fault."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.conformance import Case, Fault, Made, Plain, Refused, check, difference, launch, plain
from support.launches import Launcher

__all__ = ["Finding", "look", "look_at_scheduler", "look_at_strategy"]

MIN_TEXT = 4  # of 255: a text that changes less than this would hide a wrong text


@dataclass(frozen=True, slots=True)
class Finding:
    """`outcome` is "equal"; "batch 1": equal alone, and a batch is refused, or not made; "refused"
    by `plan`; "fault"."""

    outcome: str
    reason: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome != "fault"


def look(
    ranks: Launcher, case: Case, folder: Path, expected: Plain | Fault, *, trusts_table: bool
) -> Finding:
    """One and two processes, batch sizes 1 and 3, beside plain diffusers. What diffusers cannot
    make, `plan` must refuse. Without `trusts_table`, which says what is made one image a batch,
    no batches are asked of a class whose batches are wrong in diffusers, too."""
    if isinstance(expected, Fault):
        return _refusal(ranks, case, folder / "plan", str(expected))
    if expected.text < MIN_TEXT:
        return Finding("fault", f"another text changes only {expected.text} of 255")
    if expected.image is not None and expected.image < MIN_TEXT:
        return Finding("fault", f"another input image changes only {expected.image} of 255")
    one = case.manifest(folder / "one", batch_size=1)
    try:
        check(ranks, one)
        difference(launch(ranks, one), expected.made)
    except Refused as refusal:
        return Finding("refused", str(refusal))
    except Fault as fault:
        return Finding("fault", str(fault))
    if expected.batch and not trusts_table:
        return _two_processes(ranks, case, folder / "two", expected, expected.batch)
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
        return _two_processes(ranks, case, folder / "two", expected, expected.batch or str(refusal))
    except Fault as fault:
        why = f" (as in diffusers: {expected.batch})" if expected.batch else ""
        return Finding("fault", f"batch of 3: {fault}{why}")
    if expected.batch:
        return Finding("batch 1", expected.batch)
    if found.records[0]["batch_size"] != 3:
        return Finding("batch 1", f"the runner's batch was {found.records[0]['degraded']}")
    return Finding("equal")


def _two_processes(
    ranks: Launcher, case: Case, folder: Path, expected: Plain, reason: str
) -> Finding:
    """Of a class that is made one image a batch."""
    try:
        difference(launch(ranks, case.manifest(folder), 2), expected.made)
    except Fault as fault:
        return Finding("fault", f"two processes: {fault}")
    return Finding("batch 1", reason)


def _same(ranks: Launcher, case: Case, folder: Path, expected: Plain, **settings: Any) -> Made:
    """One process and two make what is expected, and the same. Raises Refused or Fault."""
    manifests = [case.manifest(folder / f"n{processes}", **settings) for processes in (1, 2)]
    check(ranks, manifests[1], 2)
    found = [launch(ranks, path, processes) for processes, path in enumerate(manifests, 1)]
    for one in found:
        difference(one, expected.made)
    for left, right in zip(found[0].images, found[1].images, strict=True):
        if (left != right).any():
            raise Fault("one process and two make images that are not bit by bit the same")
    return found[0]


def look_at_strategy(
    ranks: Launcher, case: Case, folder: Path, expected: Plain, strategies: Sequence[dict[str, Any]]
) -> Finding:
    """One image a batch. Equal where one of the strategies is and no other is wrong."""
    reasons = []
    for place, strategy in enumerate(strategies):
        path = case.manifest(folder / str(place), strategy=strategy)
        try:
            check(ranks, path)
            difference(launch(ranks, path), expected.made)
        except Refused as refusal:
            reasons.append(str(refusal))
        except Fault as fault:
            settings = {key: value for key, value in strategy.items() if key != "kind"}
            return Finding("fault", f"{settings}: {fault}")
    if len(reasons) == len(strategies):
        return Finding("refused", reasons[-1])
    return Finding("equal")


def look_at_scheduler(ranks: Launcher, case: Case, folder: Path) -> Finding:
    """One image a batch in one process, then three a batch in two. A scheduler whose noise plain
    diffusers draws anew each time has no image to compare with: then those two must agree."""
    try:
        expected = plain(ranks, case, folder / "plain")
    except Fault as fault:
        return _refusal(ranks, case, folder / "plan", str(fault))
    one, three = case.manifest(folder / "one"), case.manifest(folder / "three", batch_size=3)
    try:
        check(ranks, one)
        alone = launch(ranks, one)
        if expected.is_steady:
            difference(alone, expected.made)
    except Refused as refusal:
        return Finding("refused", str(refusal))
    except Fault as fault:
        return Finding("fault", str(fault))
    try:
        check(ranks, three, 2)
        difference(launch(ranks, three, 2), alone)
    except Refused as refusal:
        return Finding("batch 1", expected.batch or str(refusal))
    except Fault as fault:
        why = f" (as in diffusers: {expected.batch})" if expected.batch else ""
        return Finding("fault", f"batch of 3: {fault}{why}")
    return Finding("equal")
