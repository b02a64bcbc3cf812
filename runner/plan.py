"""Resolved manifest → tasks, fingerprints and batches: a pure function, with random access.

A plan of a million images is a few arrays of numbers: a task is made when it is asked for.
"""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import bisect
import functools
import hashlib
import itertools
import json
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from runner.errors import ManifestError, Problem
from runner.launch.layout import Part
from runner.manifest.input_images import (
    InputFaultError,
    InputFiles,
    inputs_of,
    names_input,
    renamed,
)
from runner.manifest.loras import merged_weights
from runner.manifest.prompt_seeds import seeds_of
from runner.manifest.prompts import COUNT, MAX_SEED, Prompt, is_text, text_sums
from runner.manifest.schema import Manifest
from runner.manifest.sources.prompt_list import Overrides, PromptList
from runner.manifest.suggestions import nearest
from runner.manifest.sweep import LORAS, Point, points_of, slots_in
from runner.manifest.yaml_tree import Node
from runner.model.signature import SETUP

__all__ = [
    "Fingerprints",
    "Plan",
    "Task",
    "batch_limit",
    "canonical",
    "is_text",
    "own",
    "pixels_of",
    "size_name",
    "wanted_images",
]

T = TypeVar("T", bound=Hashable)
MAX_CHECKED = 10_000  # sets of parameters whose values are checked before the start


@dataclass(frozen=True, slots=True)
class Task:
    """One image to make. `parameters` go to the pipeline call as they are, but for those of SETUP,
    which set it up before; `id` and `meta` are the author's own, and change no pixel."""

    index: int
    prompt_index: int
    prompt: str
    seed: int
    parameters: Mapping[str, Any]
    variation: int = 0  # place among the images of its prompt
    id: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)  # the values of its point


def own(task: Task) -> dict[str, Any]:
    """The id and the data that its author gave a task's prompt, and the values of its point of the
    sweep, as far as there are any."""
    values = {"id": task.id, "meta": dict(task.meta), "sweep": dict(task.sweep)}
    return {key: value for key, value in values.items() if value}


def canonical(value: Any) -> str:
    """JSON that is equal for equal values: sorted keys, 4.0 as 4."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def size_name(parameters: Mapping[str, Any]) -> str:
    """`1024x768`, width × height; `default` if the pipeline chooses either."""
    width, height = parameters.get("width"), parameters.get("height")
    return f"{width}x{height}" if width and height else "default"


def pixels_of(name: str) -> float:
    """The pixels of a size by its name. `default` may be any size, so it counts as the largest."""
    width, _, height = name.partition("x")
    return int(width) * int(height) if height else float("inf")


def batch_limit(sizes: Mapping[str, int], name: str) -> int:
    """How many images of a size a batch may have, from what `batch_size: auto` found. A size that
    was not tried takes the number of the next larger one, which needs no less memory. Over the
    largest, the batch has at most as many pixels as the largest batch that was found."""
    if name in sizes:
        return sizes[name]
    pixels = pixels_of(name)
    larger = [other for other in sizes if pixels_of(other) >= pixels]
    if larger:
        return sizes[min(larger, key=pixels_of)]
    most = max((count * pixels_of(other) for other, count in sizes.items()), default=0.0)
    return max(1, int(most / pixels))


class Plan:
    """All tasks of a manifest, and the batches that they are made in.

    Raises ManifestError if a derived seed is out of range, or a prompt does not fit the sweep.
    """

    def __init__(self, manifest: Manifest, prompts: PromptList, root: Node) -> None:
        self.manifest = manifest
        self.root = root  # of the manifest as it is written, for the lines in messages
        self.prompts = prompts
        self.inputs = InputFiles(manifest.inputs)
        self._points = self._points_of_sweep()
        self._slots = self._points[0].slots.keys()
        for point in self._points:
            self._check_loras(point.weights, self.root.walk(("sweep",)).place)
        self._can_be_blank = any(
            not word.strip() for p in self._points for word in p.slots.values()
        )
        seeds = sorted({point.seed for point in self._points if point.seed is not None})
        self._seed_gap = min((b - a for a, b in itertools.pairwise(seeds)), default=None)
        self._default_count = self._count({}, ())
        self._defaults = [self._merge({}, point) for point in self._points]
        # The index of each prompt's first image; None while every prompt has one image.
        self._firsts: array[int] | None = None
        # For what is checked before the start: names, (height, width) and whole sets of parameters
        # → the first prompt with them. Sets that differ only in their texts count as one.
        self.names: dict[str, int] = {name: 0 for each in self._defaults for name in each}
        self.sizes: dict[tuple[Any, Any], int] = {}
        self.input_images: dict[tuple[str, str], int] = {}  # (parameter, file)
        self.parameter_sets: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._lora_sets: dict[str, Mapping[str, float]] = {}
        self._batches: tuple[array[int], array[int]] | None = None  # task indices, batch ends
        self._expand()

    def _points_of_sweep(self) -> list[Point]:
        """The points of the sweep; one without any values where there is none."""
        sweep = self.manifest.sweep
        if sweep is None:
            return [Point()]
        slots = slots_in(sweep.axes, (prompt.prompt for prompt in self.prompts))
        try:
            return points_of(sweep, slots, [lora.own_name for lora in self.manifest.loras])
        except ValueError as error:
            raise self._problem(self.root.walk(("sweep",)).place, f"sweep: {error}") from None

    def _merge(self, own: Mapping[str, Any], point: Point) -> dict[str, Any]:
        """A prompt's parameters over the manifest's, and a point's over both."""
        merged = {**self.manifest.defaults, **own, **point.parameters}
        merged.pop(COUNT, None)
        if point.slots:
            merged |= {
                name: point.fill(value)
                for name, value in merged.items()
                if is_text(name) and value is not None
            }
        if merged.get("scheduler", "") is None:  # of the sweep: the model's own
            del merged["scheduler"]
        if LORAS in merged:
            merged[LORAS] = merged_weights(self.manifest.loras, own.get(LORAS), point.weights)
        if not merged.get(LORAS, True):
            del merged[LORAS]
        return merged

    def _count(self, own: Mapping[str, Any], seeds: Sequence[int], seed: int | None = None) -> int:
        """As `variations_of`."""
        manifest = self.manifest
        if COUNT in own or seeds:
            return own.get(COUNT) or len(seeds) or 1  # null: one
        if manifest.seeds and seed is None:
            return len(manifest.seeds)
        count = manifest.variations or manifest.parameters.get(COUNT)
        return count if isinstance(count, int) else 1

    def _expand(self) -> None:
        """One pass over the prompts: where their images begin, seeds in range, batches."""
        batches = _BatchBuilder(self.manifest.largest_batch)
        firsts, total, most = array("Q"), 0, 1
        defaults = [self._group(parameters, 0) for parameters in self._defaults]
        is_noted = False
        for prompt, item in enumerate(self._prompts_or_overrides()):
            own = item.parameters
            if LORAS in own:
                self._check_loras(own[LORAS], self.where(prompt))
            merged = self._parameters_of(own) if own else ()
            groups = [self._group(each, prompt) for each in merged] if own else defaults
            if own or not is_noted:
                self._note(prompt, groups)
                is_noted = is_noted or not own
            images = self._count(own, item.seeds, item.seed)
            self._check(prompt, item, images)
            firsts.append(total)
            for group in groups:
                for index in range(total, total + images):
                    batches.add(index, group.key, group.limit)
                total += images
            most = max(most, images * len(groups))
        self._firsts = firsts if most > 1 else None
        self.total = total
        self._batches = batches.finish()
        seed = self.manifest.seed
        start = seed.start if seed and not seed.per else None
        if start is not None and start + total - 1 > MAX_SEED:
            self._refuse_seed(self.root.walk(("seed",)).place, start, total)

    def _prompts_or_overrides(self) -> Iterable[Prompt | Overrides]:
        """What prompts have besides their texts, which need to be read only for the slots."""
        return self.prompts if self._slots else self.prompts.overrides()

    def _check(self, prompt: int, item: Prompt | Overrides, images: int) -> None:
        """Raises ManifestError for seeds out of range and for what the sweep sets, too."""
        seed = item.seed
        if seed is not None and seed + images - 1 > MAX_SEED:
            self._refuse_seed(self.where(prompt), seed, images)
        if self.manifest.sweep is None:
            return
        point = self._points[0]
        twice = sorted(item.parameters.keys() & (point.parameters.keys() - {LORAS}))
        twice += sorted(point.weights.keys() & item.parameters.get(LORAS, {}))
        if point.seed is not None and (seed is not None or item.seeds):
            twice.append("seed" if seed is not None else "seeds")
        if twice:
            message = f"{twice[0]}: the sweep sets it for all prompts; remove it here"
            raise self._problem(self.where(prompt, twice[0]), message)
        if self._seed_gap is not None and images > self._seed_gap:
            message = (
                f"{images} images from each seed of the sweep, and two of these are only "
                f"{self._seed_gap} apart: one picture twice; write every seed into the sweep, and "
                f"no variations"
            )
            raise self._problem(self.where(prompt), message)
        if isinstance(item, Prompt):
            lacking = [slot for slot in self._slots if slot not in item.prompt]
            if lacking:
                message = f"has no {lacking[0]}, which the sweep fills; add it"
                raise self._problem(self.where(prompt), message)
            if self._can_be_blank and not all(p.fill(item.prompt).strip() for p in self._points):
                message = "is blank with a value of the sweep; add text around it"
                raise self._problem(self.where(prompt), message)

    def _check_loras(self, weights: Iterable[str], place: str) -> None:
        """Raises ManifestError for a name that no LoRA of the manifest has."""
        known = {lora.own_name: lora.own_name for lora in self.manifest.loras}
        for name in weights:
            if name not in known:
                names = f"; there are {', '.join(known)}" if known else "; add it to loras"
                hint = nearest(name, known) or names
                raise self._problem(place, f"loras: no LoRA is called {name}{hint}")

    def _group(self, parameters: dict[str, Any], prompt: int) -> _Group:
        limit = self.manifest.batch_size
        if limit == "auto":
            limit = batch_limit(self.manifest.batch_sizes, size_name(parameters))
        key = _batch_key(self._with_sizes(parameters, prompt))
        return _Group(parameters, key, limit)

    def _with_sizes(self, parameters: dict[str, Any], prompt: int) -> dict[str, Any]:
        """With its size in place of each input image: those of a batch are of one size. Without
        batches no file is looked at."""
        if self.manifest.inputs is None or not names_input(parameters):
            return parameters

        def size(file: str) -> Any:
            if self.manifest.largest_batch == 1:
                return None
            try:
                return self.inputs.size(file)
            except InputFaultError as error:
                raise self._problem(self.where(prompt), f"{file}: {error}") from None

        return renamed(parameters, size)

    def _note(self, prompt: int, groups: Sequence[_Group]) -> None:
        """Record what is to be checked of a prompt, if it is the first with it."""
        for group in groups:
            parameters = group.parameters
            for name in parameters:
                self.names.setdefault(name, prompt)
            weights = parameters.get(LORAS, {})
            self._lora_sets.setdefault(canonical(weights), weights)
            self.sizes.setdefault((parameters.get("height"), parameters.get("width")), prompt)
            if self.manifest.inputs is not None:
                for found in inputs_of(parameters):
                    self.input_images.setdefault(found, prompt)
            if len(self.parameter_sets) < MAX_CHECKED:
                self.parameter_sets.setdefault(group.key, (prompt, parameters))

    @property
    def only_loras(self) -> Mapping[str, float] | None:
        """The LoRAs of all images with their weights; None where images have different ones."""
        return next(iter(self._lora_sets.values())) if len(self._lora_sets) == 1 else None

    @staticmethod
    def _problem(place: str, message: str) -> ManifestError:
        return ManifestError([Problem(place, message)])

    def each_once(
        self, find: Callable[[Mapping[str, Any]], Iterable[T]]
    ) -> Iterator[tuple[int, Mapping[str, Any], T]]:
        """What `find` finds in the sets of parameters, each once: with the first prompt that has
        it, and the parameters of that prompt."""
        seen = set[T]()
        for prompt, parameters in self.parameter_sets.values():
            for found in find(parameters):
                if found not in seen:
                    seen.add(found)
                    yield prompt, parameters, found

    def _refuse_seed(self, place: str, seed: int, count: int) -> None:
        last = f"the last of {count} images would get {seed + count - 1}"
        message = f"seed: {seed}: {last}, over {MAX_SEED}; use a smaller seed"
        raise self._problem(place, message)

    def where(self, prompt: int, *names: str) -> str:
        """File and line of a prompt, for a message about these parameters of it. If it has them
        from the manifest's own parameters, the line is there."""
        if names and self.prompts[prompt].parameters.keys().isdisjoint(names):
            for name in names:
                path = (name,) if name in SETUP else ("parameters", name)
                found = self.root.walk(path)
                if found.path == path:
                    return ": ".join([found.place, *path[:-1]])
        return self.prompts.where(prompt)

    def __len__(self) -> int:
        return self.total

    def task(self, index: int) -> Task:
        prompt, first = index, index
        if self._firsts is not None:
            prompt = bisect.bisect_right(self._firsts, index) - 1
            first = self._firsts[prompt]
        item = self.prompts[prompt]
        parameters, count = self._parameters_of(item.parameters), self.variations_of(item)
        return self._task(prompt, item, first, index - first, parameters, count)

    def tasks(self) -> Iterator[Task]:
        """Every task in index order, streaming."""
        first = 0
        for prompt, item in enumerate(self.prompts):
            parameters, count = self._parameters_of(item.parameters), self.variations_of(item)
            images = count * len(self._points)
            for image in range(images):
                yield self._task(prompt, item, first, image, parameters, count)
            first += images

    def _task(
        self,
        number: int,
        item: Prompt,
        first: int,
        image: int,
        parameters: Sequence[Mapping[str, Any]],
        count: int,
    ) -> Task:
        """One image of a prompt: all variations of a point of the sweep, then those of the next."""
        place, variation = divmod(image, count)
        point = self._points[place]
        return Task(
            first + image,
            number,
            point.fill(item.prompt),
            self._seed(number, item, point, first + image, variation),
            parameters[place],
            variation,
            id=item.id,
            meta=item.meta,
            sweep=point.values,
        )

    def _parameters_of(self, own: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Of a prompt, for each point of the sweep."""
        return [self._merge(own, point) for point in self._points] if own else self._defaults

    def variations_of(self, item: Prompt) -> int:
        """The images of a prompt at each point of the sweep."""
        if not item.parameters and not item.seeds and item.seed is None:
            return self._default_count
        return self._count(item.parameters, item.seeds, item.seed)

    def _seed(self, number: int, item: Prompt, point: Point, index: int, variation: int) -> int:
        own = item.seed if item.seed is not None else point.seed
        if own is not None:
            return own + variation
        seeds = item.seeds or (() if COUNT in item.parameters else self.manifest.seeds or ())
        if seeds:
            return seeds[variation]
        seed = self.manifest.seed
        if seed is None:
            return index  # it is not resolved yet: a stand-in
        if seed.fixed is not None:
            return seed.fixed
        if seed.per is not None:
            return (self._seeds[number] + (seed.start or 0) + variation) % (MAX_SEED + 1)
        return (seed.start or 0) + index

    @functools.cached_property
    def _seeds(self) -> array[int]:
        return seeds_of(self.prompts)

    def has_given_seeds(self, item: Prompt) -> bool:
        """Whether the seeds of a prompt are written down, so that none is derived or drawn."""
        if item.seed is not None or item.seeds or self._points[0].seed is not None:
            return True
        return bool(self.manifest.seeds) and COUNT not in item.parameters

    def comes_again(self, task: Task) -> bool:
        """Whether another prompt has one of this task's texts too."""
        return not self._repeated_sums.isdisjoint(text_sums(task.prompt, task.parameters))

    @functools.cached_property
    def _repeated_sums(self) -> frozenset[int]:
        return self.prompts.repeated_texts()

    @property
    def batch_count(self) -> int:
        return len(self._batches[1]) if self._batches else self.total

    def batch(self, number: int) -> tuple[int, ...]:
        """The image indices of a batch, in order."""
        if self._batches is None:
            return (number,)
        members, ends = self._batches
        return tuple(members[ends[number - 1] if number else 0 : ends[number]])


def wanted_images(plan: Plan, limit: int | None, part: Part | None) -> bytearray:
    """One byte an image: 1 for those that --limit and --shard leave to this launch."""
    if part is None:
        wanted = bytearray(b"\x01") * len(plan)
    else:
        wanted = bytearray(len(plan))
        for number in range(part[0] - 1, plan.batch_count, part[1]):
            for index in plan.batch(number):
                wanted[index] = 1
    if limit is not None and limit < len(plan):
        wanted[limit:] = bytes(len(plan) - limit)
    return wanted


class _Group(NamedTuple):
    """What the images of a prompt have in common, those of one point of the sweep."""

    parameters: dict[str, Any]
    key: str  # of the batches that they may be in
    limit: int  # images of such a batch


class _BatchBuilder:
    """Batches in index order over the whole plan. One batch is open for each key, and closed when
    it is full. `largest` is the largest limit; with 1 nothing needs to be kept."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.open: dict[str, list[int]] = {}
        self.members, self.ends = array("Q"), array("Q")

    def add(self, index: int, key: str, limit: int) -> None:
        if self.largest == 1:
            return
        batch = self.open.setdefault(key, [])
        batch.append(index)
        if len(batch) == limit:
            self._close(self.open.pop(key))

    def _close(self, batch: list[int]) -> None:
        self.members.extend(batch)
        self.ends.append(len(self.members))

    def finish(self) -> tuple[array[int], array[int]] | None:
        for batch in self.open.values():
            self._close(batch)
        return (self.members, self.ends) if self.largest > 1 else None


def _batch_key(parameters: Mapping[str, Any]) -> str:
    """Equal for images that fit into one batch: the same parameters, but for the texts' values."""
    texts = {name: "" for name, value in parameters.items() if is_text(name) and value is not None}
    return canonical({**parameters, **texts})


class Fingerprints:
    """Hashes of what the manifest says about a task's pixels: prompt, seed, parameters, input
    images by their content, model, LoRAs, pipeline class and dtype.

    `model` is what `model.files.identity` returns. Fingerprints are recorded in every output
    folder: with another form of the hash all finished images would look changed.
    """

    def __init__(
        self,
        manifest: Manifest,
        model: Mapping[str, Any],
        inputs: InputFiles | None = None,
        loras: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: dict[str, Any] = dict(model)
        self.loras = dict(loras or {})  # what each is, by its name
        self.inputs = inputs or InputFiles(manifest.inputs)
        task = {"pipeline": manifest.pipeline} if manifest.pipeline else {}
        common = canonical({"model": self.model, "dtype": manifest.dtype, **task})
        self._common = hashlib.sha256(common.encode())
        self._parameters: tuple[Mapping[str, Any], str] = ({}, "{}")

    @property
    def common(self) -> str:
        """The hash of what images share: the model, the dtype and the LoRAs."""
        digest = self._common.copy()
        digest.update(canonical(self.loras).encode())
        return digest.hexdigest()

    def of(self, task: Task) -> str:
        """32 hexadecimal digits."""
        return self.digest(task).hex()

    def digest(self, task: Task) -> bytes:
        """The same as 16 bytes. Raises ManifestError where an input image cannot be read."""
        known, text = self._parameters
        if task.parameters is not known:
            text = canonical(self._by_content(task))
            self._parameters = (task.parameters, text)
        digest = self._common.copy()
        digest.update(f"{task.seed}\n{text}\n{task.prompt}".encode())
        return digest.digest()[:16]

    def _by_content(self, task: Task) -> Mapping[str, Any]:
        try:
            found = self.inputs.by_content(task.parameters)
        except InputFaultError as error:
            where = f"prompts[{task.prompt_index}]"
            raise ManifestError([Problem(where, f"{error} (in {self.inputs.folder})")]) from None
        if LORAS not in found:
            return found
        # What they are called does not count.
        pairs = [[self.loras.get(name, name), weight] for name, weight in found[LORAS].items()]
        return {**found, LORAS: pairs}
