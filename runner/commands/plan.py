"""The `plan` command: what a run would do, without doing it."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.commands.compare import compare, table
from runner.errors import FolderError, OfflineError, StrategyError
from runner.folder.differences import made_again
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.folder.refuse import refuse
from runner.launch.devices import Machine
from runner.launch.layout import Layout
from runner.launch.shards import shard
from runner.launch.world import World
from runner.manifest.load import Loaded
from runner.manifest.schema import Manifest
from runner.model import files as model
from runner.model.configs import ModelConfigs
from runner.plan import Fingerprints, Plan, own
from runner.prepare.look import Look, look
from runner.prepare.notices import model_notices
from runner.prepare.preflight import check
from runner.prepare.strategy import conditions_of, settle
from runner.say import answer, to_json
from runner.units import counted

__all__ = ["show"]

ROWS = 40  # more images than that are summed up
ADVISE_FOLDERS = 10_000
LOOK_AT = 100_000  # images: to compare a folder of more takes longer than the plan itself
_OPEN_BATCHES = "batch_size auto: batches of one here; the first run tries sizes and records them"


@dataclass(slots=True)
class _Checked:
    """What the model's configs say, where they are at hand."""

    manifest: Manifest  # with its strategy settled
    is_checked: bool = True
    remarks: list[str] = field(default_factory=list)
    comparison: dict[str, Any] | None = None


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
    world = World(world_size=world_size)
    seen = look(loaded, folder)
    try:
        seen = seen.with_revision()
        configs = model.configs(seen.manifest.model, seen.manifest.pipeline)
    except OfflineError as error:
        if machine is not None:
            raise
        words = f"parameters, sizes and strategy not checked: {error}"
        checked = _Checked(seen.manifest, False, [words])
    else:
        checked = _check(seen, configs, world, machine, as_json=as_json)
    remarks = [*checked.remarks, *_remarks(seen)]
    fingerprints = seen.fingerprints if checked.is_checked and not seen.is_drawn else None
    places = _places(seen, remarks) if fingerprints else None
    layout = checked.manifest.strategy.layout(world)
    about = _about(checked.manifest, seen, layout, world_size, remarks)
    about["finished"] = places["stay"] + places["move"] if places else None
    about["places"] = places
    if checked.comparison is not None:
        about["comparison"] = checked.comparison
    tasks = _tasks(seen, layout, fingerprints)
    (_print_json if as_json else _print_table)(about, tasks)


def _check(
    seen: Look, configs: ModelConfigs, world: World, machine: Machine | None, *, as_json: bool
) -> _Checked:
    """What a run would check before weights load."""
    plan = seen.plan
    check(plan, configs)
    comparison = compare(plan, configs, machine) if machine is not None else None
    try:
        found = settle(plan, conditions_of(plan, configs, world, None, machine), world)
    except StrategyError:
        if comparison is not None:  # what would fit helps where the manifest's strategy does not
            answer(to_json({"comparison": comparison}) if as_json else "\n".join(table(comparison)))
        raise
    manifest = seen.manifest.model_copy(update={"strategy": found.strategy})
    remarks = [line for line in (found.choice, *found.remarks) if line]
    return _Checked(manifest, True, remarks, comparison)


def _remarks(seen: Look) -> list[str]:
    """What to know of the plan before the start."""
    plan = seen.plan
    remarks = [*map(str, seen.loaded.remarks), *model_notices(plan)]
    if seen.manifest.has_open_batches:
        remarks.append(_OPEN_BATCHES)
    if len(plan) > ADVISE_FOLDERS and not seen.manifest.output.images_per_folder:
        remarks.append(
            f"{len(plan)} images in one folder are slow to list; set "
            f"output: {{images_per_folder: 1000}}"
        )
    return remarks


def _places(seen: Look, remarks: list[str]) -> dict[str, int] | None:
    """How many images a run would keep, move and make, how many of those again, and how many are no
    longer in the list; None for a long list. What it would refuse is a remark."""
    folder = seen.folder
    if not folder.dir.is_dir():
        return {"stay": 0, "move": 0, "make": len(seen.plan), "again": 0, "gone": 0}
    if len(seen.plan) > LOOK_AT:
        remarks.append(f"what is in {folder.dir} was not looked at: more than {LOOK_AT} images")
        return None
    found = seen.survey()
    try:
        refuse(folder, found, regenerate=False)
    except FolderError as error:
        remarks.append(f"a run would be refused: {error}")
    again = made_again(folder, seen.plan, found) if found.unfit else 0
    return {
        "stay": found.finished - len(found.moves),
        "move": len(found.moves),
        "make": sum(found.todo),
        "again": again,
        "gone": found.unfit - again,
    }


def _owners(plan: Plan, layout: Layout) -> tuple[array[int], array[int]]:
    """The batch and the first replica of every image, were none there yet."""
    batches, replicas = array("Q", bytes(8 * len(plan))), array("Q", bytes(8 * len(plan)))
    for number in range(plan.batch_count):
        for index in plan.batch(number):
            batches[index], replicas[index] = number, number % layout.replicas
    return batches, replicas


def _tasks(
    seen: Look, layout: Layout, fingerprints: Fingerprints | None
) -> Iterator[dict[str, Any]]:
    plan = seen.plan
    owner = _owners(plan, layout)
    for task in plan.tasks():
        yield {
            "index": task.index,
            "file_name": seen.folder.image_name(task),
            "prompt_index": task.prompt_index,
            "variation": task.variation,
            **own(task),
            "prompt": task.prompt,
            "seed": None
            if seen.is_drawn and not plan.has_given_seeds(plan.prompts[task.prompt_index])
            else task.seed,
            "parameters": dict(task.parameters),
            "batch": owner[0][task.index],
            "replica": owner[1][task.index],
            "fingerprint": fingerprints.of(task) if fingerprints else None,
        }


def _about(
    manifest: Manifest, seen: Look, layout: Layout, world_size: int, remarks: list[str]
) -> dict[str, Any]:
    plan = seen.plan
    numbers = range(plan.batch_count)
    return {
        "model": manifest.model.id,
        "revision": manifest.model.revision,
        "pipeline": manifest.pipeline,
        "dtype": manifest.dtype,
        "strategy": manifest.strategy.model_dump(),
        "output": str(seen.folder.dir),
        "seed": None if seen.is_drawn or not manifest.seed else manifest.seed.model_dump(),
        "parameters": manifest.defaults,
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
    chosen = f", {about['pipeline']}" if about["pipeline"] else ""
    answer(f"model      {about['model']}{revision}, {about['dtype']}{chosen}")
    answer(f"output     {about['output']}")
    answer(f"parameters {_pairs(about['parameters']) or 'the defaults of the pipeline'}")
    images = f"{about['images']} from {counted(about['prompts'], 'prompt')}"
    there = f", {about['finished']} of them there" if about["finished"] else ""
    answer(f"images     {images}, in {counted(about['batches'], 'batch')}{there}")
    places = about["places"]
    if places and (places["move"] or places["again"] or places["gone"]):
        answer(f"list       {_list(places)}")
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
        name = f"{task['id']}: " if "id" in task else ""
        words = name + " ".join(task["prompt"].split())
        words = words if len(words) <= 60 else words[:59] + "…"
        answer(
            f"{task['index']:>5}  {task['file_name']:<18} {seed:>10}  {task['batch']:>5}  "
            f"{task['replica']:>7}  {words}{'  (' + _pairs(own) + ')' if own else ''}",
        )


def _list(places: dict[str, int]) -> str:
    """`0 stay, 4 move, 1 to make, 2 no longer in the list`; `8 stay, 0 move, 4 to make again`."""
    again, new = places["again"], places["make"] - places["again"]
    parts = [f"{places['stay']} stay, {places['move']} move"]
    if new or not again:
        parts.append(f"{new} to make")
    if again:
        parts.append(f"{again} to make again")
    if places["gone"] or not again:
        parts.append(f"{places['gone']} no longer in the list")
    return ", ".join(parts)


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
