"""One rank's share of the work: fetch and load the model, then lead a replica or follow."""

import contextlib
import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import (
    ExitCode,
    InterruptedRunError,
    RefusedError,
    RunnerError,
    already_printed,
)
from runner.first_image import check_first_image, expected_image
from runner.folder.journal import Journal
from runner.folder.logs import keep_log
from runner.launch.broken import leaves_share, note_broken
from runner.launch.devices import driven_devices, memory_peak, name_of, set_device
from runner.launch.process_group import replica_group
from runner.launch.replica import Replica
from runner.launch.shards import shard
from runner.lead import follow, lead
from runner.model import files as model
from runner.model import lora_files
from runner.prepare.assignment import Assignment
from runner.prepare.rank import Rank
from runner.render.results import Renderer
from runner.say import note, say

if TYPE_CHECKING:
    import torch

__all__ = ["render_and_write_batches"]

SAY_AFTER_S = 5.0  # of loading: before, the next line comes soon enough


def render_and_write_batches(
    rank: Rank,
    assignment: Assignment,
    renderer: Renderer | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> None:
    """Take batches, render and write them, until none is left. A rank without a share loads no
    model; `renderer` is there where it is loaded already. Where the ranks of a replica lose each
    other, `on_lost` is called before the process ends. Where this rank's device is of no more use,
    and there are other replicas, it only returns: they make its share."""
    world = rank.world
    rank.stop.watch_file(rank.folder.stop_file(rank.job.part))
    if world.rank:
        keep_log(rank.folder, world, assignment.launch, rank.job.part)
    layout = assignment.manifest.strategy.layout(world)
    rank.heartbeat.pulse.loads(layout.replica)
    if assignment.pending and world.local_rank == 0:
        with rank.stop.loading():
            _fetch_model(rank, assignment)  # for all ranks of this node
    if layout.is_idle or not shard(assignment.pending, layout.replica, layout.replicas):
        return
    journal = Journal(rank.folder.journals, assignment.generation, world.rank, assignment.launch)
    first_rank = world.rank - layout.rank_in_replica
    try:
        folder = _wait_for_model(rank)
        with Replica(layout, rank.store, rank.heartbeat, first_rank, on_lost) as replica:
            _make_images(rank, assignment, replica, folder, journal, renderer)
    except Exception as error:
        _record(rank, journal, error)
        if not leaves_share(layout, error):
            raise
        first_line = str(error).partition("\n")[0]
        words = (
            f"rank {world.rank} on {socket.gethostname()} stopped, its device fails: {first_line}"
        )
        note_broken(rank.store, layout.replica, words)
        return
    journal.close()


def _record(rank: Rank, journal: Journal, error: Exception) -> None:
    """What ends this rank: into its journal and its log."""
    words, trace = f"rank {rank.world.rank}: {error!r}", traceback.format_exc()
    is_fault = not isinstance(error, RefusedError | InterruptedRunError)
    note(f"{words}\n{trace}".rstrip(), logging.ERROR)
    with contextlib.suppress(OSError):
        journal.error(words, trace, rank.tally.fault() if is_fault else 0)
        journal.close()


def _fetch_model(rank: Rank, assignment: Assignment) -> None:
    """One process a node downloads what the cache lacks; the others read it offline."""
    key = f"model/{rank.world.node}"
    try:
        spec = assignment.manifest.model
        for lora in assignment.manifest.loras:
            lora_files.fetch(lora)
        rank.store.set(key, str(model.local_folder(spec) or model.download(spec)))
    except RunnerError as error:
        rank.store.set(key, f"!{error}")
        raise


def _wait_for_model(rank: Rank) -> Path:
    world = rank.world
    found = rank.heartbeat.wait_for_value(
        f"model/{world.node}", world.rank - world.local_rank, lambda: rank.stop.requested
    )
    if found is None:
        raise InterruptedRunError("stopped before the model was there")
    if found.startswith("!"):
        raise already_printed(found[1:], ExitCode.REFUSED)
    return Path(found)


def _make_images(
    rank: Rank,
    assignment: Assignment,
    replica: Replica,
    folder: Path,
    journal: Journal,
    renderer: Renderer | None,
) -> None:
    """Load the model where it is not, and lead or follow."""
    strategy = assignment.manifest.strategy
    device = set_device(rank.world, share=strategy.shares_node)
    _show_devices(rank, replica, device, shares_node=strategy.shares_node)
    expected = None
    if assignment.compares_first:  # made by one rank alone, before the replica's process group
        with _loading(rank):
            expected = expected_image(rank, assignment, replica, folder, device)
    group = replica_group(rank.world, replica.layout, device, binds_device=not strategy.own_groups)
    with group:
        if renderer is None:
            with _loading(rank):
                renderer = _load(rank, assignment, replica, folder, device)
        if assignment.compares_first:
            check_first_image(rank, assignment, replica, renderer, expected)
        if replica.layout.is_leader:
            lead(rank, assignment, replica, renderer, journal)
        else:
            follow(rank, assignment, replica, renderer, journal)


@contextlib.contextmanager
def _loading(rank: Rank) -> Iterator[None]:
    """While the model is loaded: a stop ends it at once, and a wait of seconds is explained."""
    slow = threading.Timer(SAY_AFTER_S, say, ["loading the model …"])
    slow.daemon = True
    slow.start()
    try:
        with rank.stop.loading():
            yield
    finally:
        slow.cancel()


def _show_devices(
    rank: Rank, replica: Replica, device: "torch.device", *, shares_node: bool
) -> None:
    processes = rank.world.world_size // replica.layout.replicas if shares_node else 0
    devices = driven_devices(rank.world, device, processes)
    rank.heartbeat.pulse.is_on(name_of(devices), len(devices), lambda: memory_peak(devices))


def _load(
    rank: Rank, assignment: Assignment, replica: Replica, folder: Path, device: "torch.device"
) -> Renderer:
    from runner.render.load import load

    return load(
        assignment.manifest,
        folder,
        device=device,
        world=rank.world,
        stop=rank.stop,
        replica=None if replica.is_alone else replica,
        comes_again=assignment.plan.comes_again,
        only_loras=assignment.plan.only_loras,
        inputs=assignment.fingerprints.inputs,
    )
