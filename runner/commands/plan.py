"""The `plan` command: what a run would do, without doing it."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.commands.compare import compare, table
from runner.errors import FolderError, OfflineError, StrategyError
from runner.folder.journal import merge
from runner.folder.lock import live_launches
from runner.folder.names import image_name
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.folder.refuse import refuse, refuse_to_draw
from runner.folder.survey import survey
from runner.launch.devices import Machine
from runner.launch.layout import Layout
from runner.launch.shards import shard
from runner.launch.world import World
from runner.manifest.load import Loaded
from runner.manifest.resolve import Resolved, decide, fill
from runner.manifest.schema import Manifest
from runner.model import files as model
from runner.plan import Fingerprints, Plan, Task
from runner.prepare.preflight import check
from runner.prepare.prepare import asked, is_open, notices, recorded_in, settle
from runner.say import answer, to_json
from runner.units import counted

__all__ = ["show"]

ROWS = 40  # more images than that are summed up
ADVISE_FOLDERS = 10_000
LOOK_AT = 100_000  # images: to compare a folder of more takes longer than the plan itself
_OPEN_BATCHES = "batch_size auto: batches of one here; the first run tries sizes and records them"


@os_errors_as_refusals()
def show(
    loaded: Loaded,
    output: Path,
    world_size: int,
    *,
    as_json: bool,
    machine: Machine | None = None,
) -> None:
    """Print the plan, and what each strategy would need on a machine. Raises what the start of a
    run with this world size would raise, as far as the model's configs are at hand."""
    folder = OutputFolder(output, loaded.manifest.output)
    folder.check()
    recorded = recorded_in(folder)
    resolved = decide(loaded.manifest, recorded)
    is_drawn = loaded.manifest.seed is None and recorded is None
    manifest, offline = _with_revision(loaded.manifest, resolved)
    plan = Plan(manifest, loaded.prompts, loaded.root)
    if is_drawn:
        refuse_to_draw(folder, plan)
    world = World(world_size=world_size)
    remarks, fingerprints, comparison = list[str](), None, None
    try:
        if offline is not None:
            raise offline
        configs = model.configs(manifest.model)
        check(plan, configs)
        comparison = compare(plan, configs, machine) if machine is not None else None
        found = settle(plan, asked(plan, configs, world, None, machine), world)
        remarks += [line for line in (found.choice, *found.remarks) if line]
        manifest = manifest.model_copy(update={"strategy": found.strategy})
        if not is_drawn:
            fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    except OfflineError as error:
        if machine is not None:
            raise
        remarks.append(f"parameters, sizes and strategy not checked: {error}")
    except StrategyError:
        if comparison is not None:  # what would fit helps where the manifest's strategy does not
            lines = [to_json({"comparison": comparison})] if as_json else table(comparison)
            answer("\n".join(lines))
        raise
    layout = manifest.strategy.layout(world)
    remarks += notices(plan)
    if is_open(manifest):
        remarks.append(_OPEN_BATCHES)
    if len(plan) > ADVISE_FOLDERS and not manifest.output.images_per_folder:
        remarks.append(
            f"{len(plan)} images in one folder are slow to list; set "
            f"output: {{images_per_folder: 1000}}"
        )
    tasks = _tasks(plan, layout, fingerprints, is_drawn=is_drawn)
    finished = _finished(folder, plan, fingerprints, remarks) if fingerprints else None
    about = _about(manifest, plan, folder, layout, world_size, remarks, is_drawn=is_drawn)
    about["finished"] = finished
    if comparison is not None:
        about["comparison"] = comparison
    (_print_json if as_json else _print_table)(about, tasks)


def _with_revision(manifest: Manifest, resolved: Resolved) -> tuple[Manifest, OfflineError | None]:
    """The manifest with nothing open, but for a revision that nobody can be asked for."""
    spec = manifest.model.model_copy(update={"revision": resolved.revision})
    try:
        resolved = resolved.model_copy(update={"revision": model.resolve(spec)})
    except OfflineError as error:
        return fill(manifest, resolved), error
    return fill(manifest, resolved), None


def _finished(
    folder: OutputFolder, plan: Plan, fingerprints: Fingerprints, remarks: list[str]
) -> int | None:
    """How many images a run would keep; None for a long list. What it would refuse is a remark."""
    if not folder.dir.is_dir():
        return 0
    if len(plan) > LOOK_AT:
        remarks.append(f"what is in {folder.dir} was not looked at: more than {LOOK_AT} images")
        return None
    record = merge(folder.journals, len(plan))
    found = survey(folder, plan, fingerprints, record, live_launches(folder))
    try:
        refuse(folder, found, regenerate=False)
    except FolderError as error:
        remarks.append(f"a run would be refused: {error}")
    return found.finished


def _owners(plan: Plan, layout: Layout) -> tuple[array[int], array[int]]:
    """The batch and the first replica of every image, were none there yet."""
    batches, replicas = array("Q", bytes(8 * len(plan))), array("Q", bytes(8 * len(plan)))
    for number in range(plan.batch_count):
        for index in plan.batch(number):
            batches[index], replicas[index] = number, number % layout.replicas
    return batches, replicas


def _tasks(
    plan: Plan,
    layout: Layout,
    fingerprints: Fingerprints | None,
    *,
    is_drawn: bool,
) -> Iterator[dict[str, Any]]:
    owner = _owners(plan, layout)
    for task in plan.tasks():
        yield {
            "index": task.index,
            "file_name": image_name(task.index, plan.manifest.output.images_per_folder),
            "prompt_index": task.prompt_index,
            "prompt": task.prompt,
            "seed": None if is_drawn and not _has_own_seed(plan, task) else task.seed,
            "parameters": dict(task.parameters),
            "batch": owner[0][task.index],
            "replica": owner[1][task.index],
            "fingerprint": fingerprints.of(task) if fingerprints else None,
        }


def _has_own_seed(plan: Plan, task: Task) -> bool:
    return plan.prompts[task.prompt_index].seed is not None


def _about(
    manifest: Manifest,
    plan: Plan,
    folder: OutputFolder,
    layout: Layout,
    world_size: int,
    remarks: list[str],
    *,
    is_drawn: bool,
) -> dict[str, Any]:
    numbers = range(plan.batch_count)
    return {
        "model": manifest.model.id,
        "revision": manifest.model.revision,
        "dtype": manifest.dtype,
        "strategy": manifest.strategy.model_dump(),
        "output": str(folder.dir),
        "seed": None if is_drawn or not manifest.seed else manifest.seed.model_dump(),
        "parameters": manifest.parameters,
        "prompts": len(plan.prompts),
        "images": len(plan),
        "batches": plan.batch_count,
        "batch_size": manifest.batch_size,
        "world_size": world_size,
        "replicas": layout.replicas,
        "ranks_per_replica": layout.ranks_per_replica,
        "shards": [
            len(shard(numbers, replica, layout.replicas)) for replica in range(layout.replicas)
        ],
        "remarks": remarks,
    }


def _print_json(about: dict[str, Any], tasks: Iterator[dict[str, Any]]) -> None:
    """One document, its tasks a line each, streaming."""
    answer(to_json(about)[:-1] + ', "tasks": [')
    for number, task in enumerate(tasks, 1):
        answer(to_json(task) + ("," if number < about["images"] else ""))
    answer("]}")


def _print_table(about: dict[str, Any], tasks: Iterator[dict[str, Any]]) -> None:
    revision = f" at {about['revision']}" if about["revision"] else ""
    answer(f"model      {about['model']}{revision}, {about['dtype']}")
    answer(f"output     {about['output']}")
    answer(f"parameters {_pairs(about['parameters']) or 'the defaults of the pipeline'}")
    images = f"{about['images']} from {counted(about['prompts'], 'prompt')}"
    there = f", {about['finished']} of them there" if about["finished"] else ""
    answer(f"images     {images}, in {counted(about['batches'], 'batch')}{there}")
    ranks = counted(about["ranks_per_replica"], "rank")
    world = f"{counted(about['replicas'], 'replica')} × {ranks}"
    answer(f"strategy   {about['strategy']['kind']}: {world} = {about['world_size']}")
    answer(f"shards     {_sizes(about['shards'])}")
    for remark in about["remarks"]:
        answer(f"note       {remark}")
    if "comparison" in about:
        answer("\n" + "\n".join(table(about["comparison"])))
    if about["images"] > ROWS:
        return
    answer(f"\n{'index':>5}  {'file':<18} {'seed':>10}  {'batch':>5}  {'replica':>7}  prompt")
    for task in tasks:
        seed = "drawn" if task["seed"] is None else task["seed"]
        own = {k: v for k, v in task["parameters"].items() if about["parameters"].get(k) != v}
        words = " ".join(task["prompt"].split())
        words = words if len(words) <= 60 else words[:59] + "…"
        answer(
            f"{task['index']:>5}  {task['file_name']:<18} {seed:>10}  {task['batch']:>5}  "
            f"{task['replica']:>7}  {words}{'  (' + _pairs(own) + ')' if own else ''}",
        )


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
    )


def _sizes(sizes: list[int]) -> str:
    """`4, 4, 3 batches`, or the range where there are many."""
    if len(sizes) == 1:
        return counted(sizes[0], "batch")
    if len(sizes) <= 16:
        return f"{', '.join(map(str, sizes))} batches"
    return f"{len(sizes)} of {min(sizes)} to {max(sizes)} batches"
