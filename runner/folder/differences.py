"""What changed since images were made that the manifest does not describe any more."""

import collections
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.folder.paths import OutputFolder
from runner.folder.png import call_in, read_text
from runner.folder.survey import Survey
from runner.manifest.input_images import inputs_of
from runner.plan import Plan, Task
from runner.say import cut
from runner.units import first_few

__all__ = ["BY_PLACE", "differences", "made_again"]

LOOKED_AT = 200  # images, and so many of the tasks that they may have been
TASKS = 10_000
MAX_VALUE = 60  # characters
MOST = 4  # reasons that are listed
GONE = "no longer in the list"
BY_PLACE = "goes by the place in the list, which is another now"  # the seed


def differences(folder: OutputFolder, plan: Plan, found: Survey) -> list[str]:
    """`image 3: prompts[3].guidance_scale 3.5 → 4.0`: a line for each change, and the images with
    it. `found.cause` stands for a change that the images do not show."""
    wanted = _Wanted(plan, found.todo)
    groups: dict[str, list[tuple[str, int | None]]] = {}
    looked_at = [
        (index, path, read_text(path) or {})
        for index, path in itertools.islice(_unfit(folder, plan, found), LOOKED_AT)
    ]
    is_in_place = not found.moves and not any(
        wanted.has_moved(text, index) for index, _, text in looked_at
    )
    for index, path, text in looked_at:
        name = path.name if index is None else str(index)
        change, prompt = wanted.change(text, index, is_in_place=is_in_place)
        groups.setdefault(change or found.cause, []).append((name, prompt))
    lines = [_line(change, images) for change, images in groups.items()]
    more = found.unfit - len(looked_at)
    if len(lines) > MOST:
        more += sum(len(images) for images in [*groups.values()][MOST:])
    return [*lines[:MOST], *([f"{more} more images"] if more > 0 else [])]


def made_again(folder: OutputFolder, plan: Plan, found: Survey) -> int:
    """How many of the images that fit nowhere are to be made again: their prompt is to be made."""
    wanted = collections.Counter(task.prompt for task in plan.tasks() if found.todo[task.index])
    unfit = collections.Counter(
        (read_text(path) or {}).get("prompt", "") for _, path in _unfit(folder, plan, found)
    )
    return (unfit & wanted).total()


def _unfit(folder: OutputFolder, plan: Plan, found: Survey) -> Iterator[tuple[int | None, Path]]:
    """Index and file of each image that fits nowhere; beyond the list there is no index."""
    yield from ((index, folder.image(plan.task(index))) for index in found.changed)
    yield from ((None, path) for path in found.beyond)


def _line(change: str, images: list[tuple[str, int | None]]) -> str:
    names = [name for name, _ in images]
    prompt = images[0][1]
    if len(images) == 1 and prompt is not None:
        return f"image {names[0]}: prompts[{prompt}].{change}"
    if names[0].endswith(".png"):
        return f"{first_few(names)}: {change}"
    return f"image{'s' if len(names) > 1 else ''} {first_few(names)}: {change}"


class _Wanted:
    """The tasks that are to be made: an image that fits nowhere may have been one of them."""

    def __init__(self, plan: Plan, todo: bytearray) -> None:
        self.by_prompt: dict[str, list[Task]] = {}
        self.by_index: dict[int, Task] = {}
        self.plan = plan
        for task in plan.tasks():
            if len(self.by_index) == TASKS:
                break
            if todo[task.index]:
                self.by_prompt.setdefault(task.prompt, []).append(task)
                self.by_index[task.index] = task

    def has_moved(self, text: Mapping[str, str], index: int | None) -> bool:
        """Whether an image's prompt is to be made, but not at the image's place."""
        tasks = self.by_prompt.get(text.get("prompt", ""), [])
        return bool(tasks) and all(task.index != index for task in tasks)

    def change(
        self, text: Mapping[str, str], index: int | None, *, is_in_place: bool
    ) -> tuple[str, int | None]:
        """What an image and the task that it is nearest to differ in, "" where the image does not
        show it; and the place of that task's prompt. Only where the list did not move is a new
        prompt at an image's place the old one, edited."""
        tasks = [*self.by_prompt.get(text.get("prompt", ""), [])]
        if is_in_place and index in self.by_index:
            tasks.append(self.by_index[index])
        if not tasks:
            return GONE, None
        task = min(tasks, key=lambda task: _distance(text, task, index))
        before, now = _values_of(text), _values_of_task(task)
        before |= {"content": _parsed(text.get("inputs", ""))}
        now |= {"content": {f: self.plan.inputs.sha256(f) for _, f in inputs_of(task.parameters)}}
        if before["prompt"] != now["prompt"] and not self.plan.has_given_seeds(
            self.plan.prompts[task.prompt_index]
        ):
            now["seed"] = before["seed"]  # it follows from the rest
        changes = [*_changes(before, now)]
        if before | {"seed": now["seed"]} == now and changes and self._goes_by_place(task):
            return f"seed {BY_PLACE}", None
        changes = changes or [*_changes(self._model_of(text), self._model())]
        return ", ".join(changes), task.prompt_index

    def _goes_by_place(self, task: Task) -> bool:
        seed = self.plan.manifest.seed
        is_by_place = seed is not None and seed.fixed is None and seed.per is None
        return is_by_place and not self.plan.has_given_seeds(self.plan.prompts[task.prompt_index])

    def _model(self) -> dict[str, Any]:
        """Of a model in a local folder its files count, not its name: `found.cause` names them."""
        spec, about = self.plan.manifest.model, {"dtype": self.plan.manifest.dtype}
        if spec.folder:
            return about
        names = {"model": spec.id, "model.revision": spec.revision, "model.variant": spec.variant}
        return {**about, **names}

    def _model_of(self, text: Mapping[str, str]) -> dict[str, Any]:
        """What is not in an image's text counts as equal."""
        model = _parsed(text.get("model", ""))
        named = {"model": model.get("id"), "dtype": text.get("dtype")}
        named |= {f"model.{key}": model.get(key) for key in ("revision", "variant")}
        known = self._model()
        return {key: now if named[key] is None else named[key] for key, now in known.items()}


def _distance(text: Mapping[str, str], task: Task, index: int | None) -> tuple[bool, bool, bool]:
    return (
        text.get("prompt") != task.prompt,
        text.get("seed") != str(task.seed),
        task.index != index,
    )


def _values_of(text: Mapping[str, str]) -> dict[str, Any]:
    seed = text.get("seed", "")
    known = {"prompt": text.get("prompt"), "seed": int(seed) if seed.isdecimal() else seed}
    return {**known, **_parsed(call_in(text))}


def _values_of_task(task: Task) -> dict[str, Any]:
    return {"prompt": task.prompt, "seed": task.seed, **task.parameters}


def _parsed(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    for name in {**before, **now}:
        if name not in before:
            yield f"{name} {_shown(now[name])}, not given before"
        elif name not in now:
            yield f"{name} {_shown(before[name])}, not given now"
        elif name == "content":
            changed = [file for file in now[name] if before[name].get(file, "") != now[name][file]]
            yield from (f"{file} is another image" for file in changed if file in before[name])
        elif before[name] != now[name]:
            yield f"{name} {_shown(before[name])} → {_shown(now[name])}"


def _shown(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False), MAX_VALUE)
