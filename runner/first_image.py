"""The first image, compared with plain diffusers before any other is made.

Each replica makes it twice, alone and in its batch: where the two differ, it has random numbers
from outside its generator, or its batch changes it. prepare/proof.py says when to compare.
"""

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import GaveUpError, ModelError, RefusedError, StrategyError
from runner.launch.replica import Replica
from runner.plan import Task
from runner.prepare.assignment import Assignment
from runner.prepare.proof import note_comparison
from runner.prepare.rank import Rank
from runner.render.results import DroppedError, Failure, Image, Renderer
from runner.render.self_check import Pixels, difference, plain_image
from runner.say import say

if TYPE_CHECKING:
    import torch

__all__ = ["check_first_image", "expected_image"]

NO_FAULT = ("flagged", "skipped", "out-of-memory")  # kinds of failures that say nothing of it


def expected_image(
    rank: Rank, assignment: Assignment, replica: Replica, folder: Path, device: "torch.device"
) -> Pixels | None:
    """The first image by plain diffusers, on the leader of a replica; None where the memory of one
    device does not hold it. Raises ModelError where diffusers cannot make it."""
    if not replica.layout.is_leader:
        return None
    task = _first_task(assignment)
    try:
        return plain_image(assignment.manifest, folder, device, rank.world, task)
    except Exception as error:
        from runner.render.pipeline import kind_of

        if kind_of(error, is_compiled=False) == "out-of-memory":
            say("the first image is not compared: plain diffusers finds no memory on one device")
            return None
        where = assignment.plan.where(task.prompt_index)
        words = f"{where}: diffusers cannot make this image: {type(error).__name__}: {error}"
        rank.store.set(_key(replica.layout.replica), words)  # the other replicas wait for it
        raise ModelError(words) from error


def check_first_image(
    rank: Rank,
    assignment: Assignment,
    replica: Replica,
    renderer: Renderer,
    expected: Pixels | None,
) -> None:
    """Make the first image on all ranks of the replica, and compare it on the leader. Raises
    RefusedError on every rank of the launch where a replica has found a difference: no image is
    written then. What stops the work, a stop or missing memory, is left to the work itself."""
    words: str | None
    try:
        words = _compare(renderer, _first_batch(assignment), expected)
    except (DroppedError, GaveUpError):
        words = None
    except Exception as error:  # of this rank alone: the others are in the call, or behind it
        words = "".join(traceback.format_exception_only(error)).strip()
    verdict = replica.agree_on(("self-check", words) if words else None)
    if replica.layout.is_leader:
        rank.store.set(_key(replica.layout.replica), verdict[1] if verdict else "")
    _raise_for_any(rank, assignment, replica)
    if rank.world.rank == 0 and words == "" and not rank.stop.requested:
        note_comparison(rank.folder, assignment.manifest, assignment.launch)


def _compare(renderer: Renderer, batch: list[Task], expected: Pixels | None) -> str | None:
    """What is wrong with the first image, alone and in its batch; "" where nothing is, None where
    there is nothing to compare."""
    dtype = renderer.about["dtype"]
    first, second = _made_first(renderer, batch[:1]), _made_first(renderer, batch)
    if isinstance(first, Failure):
        return None if first.kind in NO_FAULT else f"it failed: {first.error}"
    if first is None or expected is None:  # another rank has the image
        return None
    if words := difference(first.pixels, expected, dtype):
        return f"it differs from the image of plain diffusers: {words}"
    if isinstance(second, Image) and (words := difference(second.pixels, first.pixels, dtype)):
        where = f"in a batch of {len(batch)}" if len(batch) > 1 else "when it is made again"
        return f"it is another image {where}: {words}"
    return ""


def _made_first(renderer: Renderer, batch: list[Task]) -> Image | Failure | None:
    """The first image of a batch; None on a rank that computes along."""
    rendered = renderer.render(batch)
    if rendered.error is not None:
        raise rendered.error
    return rendered.results[0] if rendered.results else None


def _raise_for_any(rank: Rank, assignment: Assignment, replica: Replica) -> None:
    """Wait for the verdicts of all replicas that have work, the dead left out."""
    layout, stop = replica.layout, rank.stop

    def is_stopped() -> bool:
        return stop.requested

    for other in range(min(layout.replicas, len(assignment.pending))):
        leader = other * layout.ranks_per_replica + layout.leader
        words = rank.heartbeat.wait_for_value(_key(other), leader, is_stopped)
        if words:
            raise _refusal(assignment, words)


def _refusal(assignment: Assignment, words: str) -> RefusedError:
    manifest = assignment.manifest
    first = _first_task(assignment)
    if not manifest.is_plain:
        return StrategyError(
            f"strategy: {manifest.strategy.kind}: the first image ({first.index}) is not right: "
            f"{words}; use data_parallel, another degree or attention backend, or compile: false"
        )
    return ModelError(
        f"{manifest.model.id}: the first image ({first.index}) is not right: {words}; the runner "
        f"cannot make the images of this pipeline"
    )


def _first_batch(assignment: Assignment) -> list[Task]:
    plan = assignment.plan
    return [plan.task(index) for index in plan.batch(assignment.pending[0])]


def _first_task(assignment: Assignment) -> Task:
    return _first_batch(assignment)[0]


def _key(replica: int) -> str:
    return f"first image/{replica}"
