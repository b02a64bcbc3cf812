"""Before the work: rank 0 looks at the folder and the model, refuses or decides, and tells all."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import base64
import contextlib
import dataclasses
import itertools
import json
import operator
import time
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner import demo
from runner.errors import (
    FolderError,
    InterruptedRunError,
    ManifestError,
    Problem,
    RefusedError,
    RunnerError,
    StrategyError,
    refusal,
)
from runner.folder import space
from runner.folder.clear import clear
from runner.folder.files import replace
from runner.folder.journal import Journal, merge
from runner.folder.lock import FolderLock, guard, live_launches
from runner.folder.merged_record import LOST
from runner.folder.pack import pack
from runner.folder.paths import HEADER, OutputFolder, os_errors_as_refusals
from runner.folder.refuse import refuse, refuse_to_draw
from runner.folder.survey import pending_batches, survey
from runner.launch.crashes import quarantined
from runner.launch.devices import Machine, set_device, this_machine
from runner.launch.heartbeat import Pulse
from runner.launch.shards import Shard, open_shards
from runner.launch.stop import Stop
from runner.launch.store import Store
from runner.launch.world import World
from runner.manifest.load import Loaded, parse
from runner.manifest.prompts import FilePrompts
from runner.manifest.resolve import Resolved, decide, dump, fill
from runner.manifest.schema import Manifest
from runner.model import files as model
from runner.model.weights import component_bytes
from runner.plan import Fingerprints, Plan, wanted_images
from runner.prepare.preflight import check
from runner.render import compiled
from runner.say import say
from runner.strategies import Asked, Resolution
from runner.units import first_few

__all__ = [
    "Job",
    "Start",
    "asked",
    "hear",
    "is_open",
    "notices",
    "prepare",
    "recorded_in",
    "refusal_noted",
    "settle",
    "tell",
    "tell_error",
]

PROBE_PATIENCE_S = 1800.0  # for a sibling shard that tries batch sizes, model download included
LOOKED_AT = 10_000  # prompts, for words that the demo model does not know


@dataclass(frozen=True, slots=True)
class Job:
    """What the command line asks for."""

    loaded: Loaded
    output: Path
    limit: int | None = None
    regenerate: bool = False
    self_check: bool = False
    shard: Shard | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What is to do, the same on every rank."""

    launch: str
    generation: int
    resolved: Resolved
    manifest: Manifest
    plan: Plan
    fingerprints: Fingerprints
    pending: array[int]  # numbers of batches
    deaths: dict[int, int] = field(default_factory=dict)  # see crashes.py
    begun: float = 0.0  # when the launch did, by this process's monotonic clock
    missing: int = 0  # images to make; known to rank 0
    finished: int = 0  # images that were there; known to rank 0
    choice: str = ""  # what `auto` chose and why; known to rank 0
    renderer: Any = None  # where rank 0 has loaded the model already


@contextlib.contextmanager
def refusal_noted(folder: OutputFolder, lock: FolderLock) -> Iterator[None]:
    """Leaves a word for `status` where a launch is refused that has the folder for itself; what is
    wrong with the folder `status` sees by itself."""
    try:
        yield
    except RefusedError as error:
        if lock.is_held and not isinstance(error, FolderError):
            replace(folder.refused, (str(error).encode(),), lock.launch)
        raise


@os_errors_as_refusals()
def prepare(
    job: Job,
    folder: OutputFolder,
    lock: FolderLock,
    world: World,
    deaths: dict[int, int],
    stop: Stop,
) -> Start:
    """Rank 0 alone. Raises RefusedError in any form: no image was touched until then."""
    begun = time.monotonic()
    folder.prepare()
    lock.acquire()
    folder.refused.unlink(missing_ok=True)
    folder.stop_file(job.shard).unlink(missing_ok=True)  # a new launch means: go on
    stop.watch_file(folder.stop_file(job.shard))
    start = _settle(job, folder, lock.launch)
    record = merge(folder.journals, len(start.plan))
    live = live_launches(folder) - {lock.launch}
    found = survey(folder, start.plan, start.fingerprints, record, live)
    refuse(folder, found, regenerate=job.regenerate)
    wanted = wanted_images(start.plan, job.limit, job.shard)
    crashed = [index for index in quarantined(deaths) if found.todo[index]]
    for index in crashed:
        found.todo[index] = 0
    # What ended a replica may do so again: the others first.
    lost = {index for index, failed in record.failed.items() if failed.kind == LOST}
    pending = pending_batches(start.plan, found.todo, wanted, lost)
    # Which batches are a shard's own is not known before their sizes are.
    has_work = bool(pending) or (job.shard is not None and any(found.todo))
    if has_work:
        start = preflight(start, world)
        space.check(folder)
    if has_work and is_open(start.manifest):
        start = _settle_batches(start, job, folder, world, stop)
        wanted = wanted_images(start.plan, job.limit, job.shard)
        pending = pending_batches(start.plan, found.todo, wanted, lost)
    journal = Journal(folder.journals, record.generation + 1, world.rank, lock.launch)
    if found.beyond:
        names = first_few([path.name for path in found.beyond])
        say(f"removing what is beyond the list: {names}")
    clear(folder, found, journal, record, live, wanted)
    for index in crashed:
        fingerprint = start.fingerprints.of(start.plan.task(index))
        journal.failed(index, fingerprint, "crashed", "its process died, and again alone", "")
    journal.close()
    pack(folder.journals, record, live_launches(folder), lock.launch)
    if not is_open(start.manifest):  # with nothing to do; a sibling shard may have settled it
        _record(folder, start)
    # The survey's own journal came between the last launch and this one.
    return dataclasses.replace(
        start,
        generation=record.generation + 2,
        pending=pending,
        begun=begun,
        missing=sum(map(operator.and_, found.todo, wanted)),
        finished=found.finished,
        deaths=deaths,
    )


def _settle(job: Job, folder: OutputFolder, launch: str) -> Start:
    """The plan with its seed and revision. Of sibling shards the first settles what is open for
    all."""
    with guard(folder.locks / "guard"):
        recorded = recorded_in(folder)
        resolved = decide(job.loaded.manifest, recorded)
        spec = job.loaded.manifest.model.model_copy(update={"revision": resolved.revision})
        resolved = resolved.model_copy(update={"revision": model.resolve(spec)})
        start = _start(job, resolved, launch)
        if recorded is None:
            if job.loaded.manifest.seed is None:
                refuse_to_draw(folder, start.plan)
            _record(folder, start)
    return start


def _record(folder: OutputFolder, start: Start) -> None:
    """Write the manifest as run."""
    choice = f"# {start.choice}\n" if start.choice else ""
    parts = (HEADER, choice, dump(start.manifest))
    replace(folder.manifest, (part.encode() for part in parts), start.launch)


def _start(job: Job, resolved: Resolved, launch: str) -> Start:
    manifest = fill(job.loaded.manifest, resolved)
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    plan = Plan(manifest, job.loaded.prompts, job.loaded.root)
    return Start(launch, 0, resolved, manifest, plan, fingerprints, array("Q"))


def recorded_in(folder: OutputFolder) -> Manifest | None:
    """The manifest as an earlier run resolved it. Raises ManifestError where it is damaged."""
    try:
        return parse(folder.manifest)[0] if folder.manifest.is_file() else None
    except ManifestError as error:
        remedy = (
            "not as the runner wrote it; bring it back from a copy, or remove it and run again: "
            "the images tell what they were made with"
        )
        raise ManifestError([*error.problems, Problem(str(folder.manifest), remedy)]) from None


def preflight(start: Start, world: World) -> Start:
    """Check what can be known before weights load, and settle the strategy.

    Raises StrategyError, ModelError, LaunchError.
    """
    device = set_device(world)
    if device.type == "cpu" and start.manifest.dtype == "float16":
        raise StrategyError("dtype float16 needs a GPU, and there is none; use float32 or bfloat16")
    folder = model.configs(start.manifest.model)
    check(start.plan, folder)
    found = settle(start.plan, asked(start.plan, folder, world, device.type), world)
    kept = compiled.check_machine(device) if start.manifest.compile else ""
    for line in [found.choice, *found.remarks, kept]:
        if line:
            say(line)
    settled = {"strategy": found.strategy}
    return dataclasses.replace(
        start,
        resolved=start.resolved.model_copy(update=settled),
        manifest=start.manifest.model_copy(update=settled),
        choice=found.choice,
    )


def settle(plan: Plan, job: Asked, world: World) -> Resolution:
    """The manifest's strategy with nothing open. Raises StrategyError."""
    found = plan.manifest.strategy.resolve(job, world)
    strategy = found.strategy
    if plan.manifest.on_out_of_memory == "offload" and (strategy.ranks > 1 or strategy.shares_node):
        raise StrategyError(
            f"on_out_of_memory: offload: with {strategy.kind} the parts of the model stay where "
            f"they are; use tile"
        )
    if plan.manifest.compile:
        compiled.check(job, strategy, plan.manifest.on_out_of_memory)
    return found


def is_open(manifest: Manifest) -> bool:
    """Whether batch sizes are still to be found."""
    return manifest.batch_size == "auto" and not manifest.batch_sizes


def _settle_batches(
    start: Start, job: Job, folder: OutputFolder, world: World, stop: Stop
) -> Start:
    """Find the batch sizes, record them, and cut the plan anew. One launch at a time: sibling
    shards take what the first has found."""
    with guard(folder.locks / "batches", PROBE_PATIENCE_S):
        recorded = recorded_in(folder)
        sizes = decide(job.loaded.manifest, recorded).batch_sizes
        renderer = start.renderer
        if not sizes:
            sizes, renderer = _try_batches(start, job, folder, world, stop)
        resolved = start.resolved.model_copy(update={"batch_sizes": sizes})
        settled = _start(job, resolved, start.launch)
        start = dataclasses.replace(settled, choice=start.choice, renderer=renderer)
        _record(folder, start)
    found = ", ".join(f"{count} for {name}" for name, count in sizes.items())
    say(f"batch_size auto: {found}")
    return start


def _try_batches(
    start: Start, job: Job, output: OutputFolder, world: World, stop: Stop
) -> tuple[dict[str, int], Any]:
    """Batch sizes, and the pipeline that they were tried on."""
    strategy, spec = start.manifest.strategy, start.manifest.model
    if not strategy.tries_batches:
        return {"default": 1}, None
    from runner.prepare.batch_sizes import probe
    from runner.render.load import load

    folder = model.local_folder(spec) or model.download(spec)
    device = set_device(world, share=strategy.shares_node)
    again = start.plan.comes_again
    renderer = load(start.manifest, folder, strategy, device, stop, world, comes_again=again)
    replicas = strategy.layout(world).replicas * (job.shard[1] if job.shard else 1)
    warms_up = start.manifest.compile
    found = probe(renderer, start.plan.tasks(), replicas, stop, output.trial, warms_up=warms_up)
    return found, renderer


def asked(
    plan: Plan, folder: Path, world: World, device: str | None, machine: Machine | None = None
) -> Asked:
    """What a strategy's preconditions look at; `device` is None where the work is not done here,
    `machine` the one that will do it then."""
    manifest = plan.manifest
    spec, dtype = manifest.model, manifest.dtype
    return Asked(
        model=manifest.model.id,
        folder=folder,
        dtype=dtype,
        batch_size=manifest.largest_batch,
        images=plan.tasks,
        where=plan.where,
        device=device,
        component_bytes=lambda: component_bytes(spec, dtype),
        machine=lambda: machine or this_machine(world),
        planned=machine,
        trusts_code=spec.trust_remote_code,
    )


def notices(plan: Plan) -> list[str]:
    """What the user should know of the bundled model's limits, a line each."""
    if plan.manifest.model.id != "demo":
        return []
    lines = []
    first = itertools.islice(plan.prompts, LOOKED_AT)
    strange = next((item.prompt for item in first if not demo.knows(item.prompt)), None)
    if strange is not None:
        words = ", ".join(sorted(demo.WORDS))
        lines.append(f'the demo model knows no word of "{strange[:60]}"; its words: {words}')
    for size in plan.sizes:
        if size not in demo.SIZES:
            known = ", ".join(f"{width}×{height}" for height, width in sorted(demo.SIZES))
            lines.append(
                f"the demo model was not trained for {size[1]}×{size[0]}; it knows {known}"
            )
    return lines


def tell(job: Job, start: Start, store: Store, replicas: int) -> None:
    """Rank 0's word to the others, and the counters that they share."""
    open_shards(store, replicas)
    values = {
        "launch": start.launch,
        "generation": start.generation,
        "age_s": time.monotonic() - start.begun,
        "checksum": _checksum(job.loaded),
        "resolved": start.resolved.model_dump(),
        "deaths": list(start.deaths.items()),
        "pending": base64.b64encode(zlib.compress(start.pending.tobytes(), 1)).decode(),
    }
    store.set("start", json.dumps(values))


def tell_error(error: RunnerError | str, store: Store) -> None:
    code = error.exit_code if isinstance(error, RunnerError) else RunnerError.exit_code
    store.set("start", json.dumps({"error": str(error), "exit_code": int(code)}))


def hear(job: Job, store: Store, pulse: Pulse, stop: Stop) -> Start:
    """Wait for rank 0's word. Raises its error, marked as told; InterruptedRunError without it."""
    text = pulse.wait_for_value("start", 0, lambda: stop.requested)
    if text is None:
        raise InterruptedRunError("stopped before rank 0 began the work")
    values: dict[str, Any] = json.loads(text)
    if "error" in values:
        raise refusal(values["error"], values["exit_code"])
    if values["checksum"] != _checksum(job.loaded):
        raise RunnerError(
            f"{job.loaded.path} or its prompt file changed while the job began, or is another on "
            f"this host; run the same command again"
        )
    resolved = Resolved.model_validate(values["resolved"])
    start = _start(job, resolved, values["launch"])
    pending = array("Q")
    pending.frombytes(zlib.decompress(base64.b64decode(values["pending"])))
    return dataclasses.replace(
        start,
        generation=values["generation"],
        begun=time.monotonic() - values["age_s"],
        pending=pending,
        deaths=dict(values["deaths"]),
    )


def _checksum(loaded: Loaded) -> int:
    """Of what the manifest says and all its prompts: every rank reads the files for itself."""
    prompts, text = loaded.prompts, loaded.manifest.model_dump_json(exclude={"model", "prompts"})
    if isinstance(prompts, FilePrompts):
        return zlib.crc32(text.encode(), prompts.checksum())
    return zlib.crc32("".join([text, *map(repr, prompts)]).encode())
