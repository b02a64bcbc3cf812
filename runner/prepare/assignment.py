"""What rank 0 broadcasts before the work: the assignment, or why there is none."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import base64
import json
import time
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.errors import InterruptedRunError, ModelError, RunnerError, already_printed
from runner.launch.shards import open_shards
from runner.launch.store import Store
from runner.manifest.load import Loaded
from runner.manifest.resolve import Resolved, fill
from runner.manifest.schema import Manifest
from runner.model import files as model
from runner.model.lora_files import identities
from runner.plan import Fingerprints, Plan
from runner.prepare.rank import Rank

__all__ = ["Assignment", "broadcast", "broadcast_error", "checksum", "receive"]

KEY = "assignment"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What every rank must know of a launch; the same on all of them."""

    launch: str
    generation: int  # which launch on this folder, counted from 1
    begun: float  # when the launch began, by this process's monotonic clock
    resolved: Resolved
    manifest: Manifest
    plan: Plan
    fingerprints: Fingerprints
    pending: array[int]  # numbers of the batches to make
    compares_first: bool  # the first image with plain diffusers: see prepare/proof.py
    deaths: Mapping[int, int]  # image → processes that died with it: see launch/crashes.py


def broadcast(rank: Rank, assignment: Assignment) -> None:
    """Rank 0: send the assignment, and open the counters that all ranks share."""
    open_shards(rank.store, assignment.manifest.strategy.layout(rank.world).replicas)
    values = {
        "launch": assignment.launch,
        "generation": assignment.generation,
        "age_s": time.monotonic() - assignment.begun,
        "checksum": checksum(rank.job.loaded),
        "common": assignment.fingerprints.common,
        "resolved": assignment.resolved.model_dump(),
        "compares_first": assignment.compares_first,
        "deaths": list(assignment.deaths.items()),
        "pending": base64.b64encode(zlib.compress(assignment.pending.tobytes(), 1)).decode(),
    }
    rank.store.set(KEY, json.dumps(values))


def broadcast_error(store: Store, error: BaseException) -> None:
    """Rank 0: send what ended the launch before the work."""
    told = error if isinstance(error, RunnerError) else RunnerError(repr(error))
    store.set(KEY, json.dumps({"error": str(told), "exit_code": int(told.exit_code)}))


def receive(rank: Rank) -> Assignment:
    """Wait for rank 0's assignment. Raises its error, marked as printed; InterruptedRunError where
    rank 0 is gone or this rank should stop."""
    text = rank.heartbeat.wait_for_value(KEY, 0, lambda: rank.stop.requested)
    if text is None:
        raise InterruptedRunError("stopped before rank 0 began the work")
    values: dict[str, Any] = json.loads(text)
    if "error" in values:
        raise already_printed(values["error"], values["exit_code"])
    loaded = rank.job.loaded
    if values["checksum"] != checksum(loaded):
        raise RunnerError(
            f"{loaded.path} or its prompt file changed while the job began, or is another on this "
            f"host; run the same command again"
        )
    resolved = Resolved.model_validate(values["resolved"])
    manifest = fill(loaded.manifest, resolved)
    plan = Plan(manifest, loaded.prompts, loaded.root)
    fingerprints = Fingerprints(
        manifest, model.identity(manifest.model), plan.inputs, identities(manifest.loras)
    )
    if values["common"] != fingerprints.common:
        raise ModelError(
            f"{manifest.model.id}: its files on this host are not those of rank 0's host; copy "
            f"them anew"
        )
    pending = array("Q")
    pending.frombytes(zlib.decompress(base64.b64decode(values["pending"])))
    return Assignment(
        launch=values["launch"],
        generation=values["generation"],
        begun=time.monotonic() - values["age_s"],
        resolved=resolved,
        manifest=manifest,
        plan=plan,
        fingerprints=fingerprints,
        pending=pending,
        compares_first=values["compares_first"],
        deaths=dict(values["deaths"]),
    )


def checksum(loaded: Loaded) -> int:
    """Of what the manifest says and all its prompts: every rank reads the files for itself."""
    text = loaded.manifest.model_dump_json(exclude={"model", "prompts", "inputs"})
    return zlib.crc32(text.encode(), loaded.prompts.checksum())
