"""Resolved manifest → tasks, fingerprints and batches: a pure function, with random access.

A plan of a million images is a few arrays of numbers: a task is made when it is asked for.
"""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import bisect
import functools
import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.errors import ManifestError, Problem
from runner.launch.layout import Part
from runner.manifest.prompt_file import FilePrompts, overrides_of, repeated_sums
from runner.manifest.prompts import MAX_SEED, Prompt, is_text, text_sums
from runner.manifest.schema import Manifest
from runner.manifest.yaml_tree import Node

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

MAX_CHECKED = 10_000  # sets of parameters whose values are checked before the start


@dataclass(frozen=True, slots=True)
class Task:
    """One image to make. `parameters` go to the pipeline call as they are; `id` and `meta` are the
    author's own, and change no pixel."""

    index: int
    prompt_index: int
    prompt: str
    seed: int
    parameters: Mapping[str, Any]
    variation: int = 0  # place among the images of its prompt
    id: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


def own(task: Task) -> dict[str, Any]:
    """The id and the data that its author gave a task's prompt, as far as there are any."""
    values = {"id": task.id, "meta": dict(task.meta)}
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

    Raises ManifestError if a derived seed is out of range.
    """

    def __init__(self, manifest: Manifest, prompts: Sequence[Prompt], root: Node) -> None:
        self.manifest = manifest
        self.root = root  # of the manifest as it is written, for the lines in messages
        self.prompts = prompts
        self._defaults, self._default_count = self._merge({})
        # The index of each prompt's first image; None while every prompt has one image.
        self._firsts: array[int] | None = None
        # For what is checked before the start: names, (height, width) and whole sets of parameters
        # → the first prompt with them. Sets that differ only in their texts count as one.
        self.names: dict[str, int] = dict.fromkeys(self._defaults, 0)
        self.sizes: dict[tuple[Any, Any], int] = {}
        self.parameter_sets: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._batches: tuple[array[int], array[int]] | None = None  # task indices, batch ends
        self._expand()

    def _merge(self, own: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """A prompt's parameters over the manifest's, and its number of images, 1 for null."""
        merged = {**self.manifest.parameters, **own}
        count = merged.pop("num_images_per_prompt", None)
        return merged, count if isinstance(count, int) else 1

    def _expand(self) -> None:
        """One pass over the prompts: where their images begin, seeds in range, batches."""
        batches = _BatchBuilder(self.manifest.largest_batch)
        firsts, total, most = array("Q"), 0, 1
        default, is_noted = self._group({}), False
        for prompt, (seed, own) in enumerate(overrides_of(self.prompts)):
            group = self._group(own) if own else default
            if own or not is_noted:
                self._note(prompt, group)
                is_noted = is_noted or not own
            if seed is not None and seed + group.images - 1 > MAX_SEED:
                self._refuse_seed(self.where(prompt), seed, group.images)
            firsts.append(total)
            for index in range(total, total + group.images):
                batches.add(index, group.key, group.limit)
            total += group.images
            most = max(most, group.images)
        self._firsts = firsts if most > 1 else None
        self.total = total
        self._batches = batches.finish()
        start = self.manifest.seed.start if self.manifest.seed else None
        if start is not None and start + total - 1 > MAX_SEED:
            self._refuse_seed(self.root.walk(("seed",)).place, start, total)

    def _group(self, own: Mapping[str, Any]) -> _Group:
        parameters, images = self._merge(own)
        limit = self.manifest.batch_size
        if limit == "auto":
            limit = batch_limit(self.manifest.batch_sizes, size_name(parameters))
        return _Group(parameters, images, _batch_key(parameters), limit)

    def _note(self, prompt: int, group: _Group) -> None:
        """Record what is to be checked of a prompt, if it is the first with it."""
        parameters = group.parameters
        for name in parameters:
            self.names.setdefault(name, prompt)
        self.sizes.setdefault((parameters.get("height"), parameters.get("width")), prompt)
        if len(self.parameter_sets) < MAX_CHECKED:
            self.parameter_sets.setdefault(group.key, (prompt, parameters))

    def _refuse_seed(self, place: str, seed: int, count: int) -> None:
        last = f"the last of {count} images would get {seed + count - 1}"
        message = f"seed: {seed}: {last}, over {MAX_SEED}; use a smaller seed"
        raise ManifestError([Problem(place, message)])

    def where(self, prompt: int, *names: str) -> str:
        """File and line of a prompt, for a message about these parameters of it. If it has them
        from the manifest's own parameters, the line is there."""
        if names and self.prompts[prompt].parameters.keys().isdisjoint(names):
            for name in names:
                found = self.root.walk(("parameters", name))
                if found.path == ("parameters", name):
                    return f"{found.place}: parameters"
        if isinstance(self.prompts, FilePrompts):
            return self.prompts.where(prompt)
        return f"{self.root.walk(('prompts', prompt)).place}: prompts[{prompt}]"

    def __len__(self) -> int:
        return self.total

    def task(self, index: int) -> Task:
        prompt, first = index, index
        if self._firsts is not None:
            prompt = bisect.bisect_right(self._firsts, index) - 1
            first = self._firsts[prompt]
        item = self.prompts[prompt]
        return self._task(index, prompt, index - first, item, self._parameters_of(item)[0])

    def tasks(self) -> Iterator[Task]:
        """Every task in index order, streaming."""
        first = 0
        for prompt, item in enumerate(self.prompts):
            parameters, count = self._parameters_of(item)
            for index in range(first, first + count):
                yield self._task(index, prompt, index - first, item, parameters)
            first += count

    def _task(
        self, index: int, number: int, variation: int, item: Prompt, parameters: Mapping[str, Any]
    ) -> Task:
        """The image of a prompt, which has this number."""
        seed = self._seed(item, index, variation)
        return Task(
            index, number, item.prompt, seed, parameters, variation, id=item.id, meta=item.meta
        )

    def _parameters_of(self, item: Prompt) -> tuple[dict[str, Any], int]:
        own = item.parameters
        return self._merge(own) if own else (self._defaults, self._default_count)

    def _seed(self, item: Prompt, index: int, of_prompt: int) -> int:
        if item.seed is not None:
            return item.seed + of_prompt
        seed = self.manifest.seed
        if seed is None:
            return index  # it is not resolved yet: a stand-in
        return seed.fixed if seed.fixed is not None else (seed.start or 0) + index

    def comes_again(self, task: Task) -> bool:
        """Whether another prompt has one of this task's texts too."""
        return not self._repeated_sums.isdisjoint(text_sums(task.prompt, task.parameters))

    @functools.cached_property
    def _repeated_sums(self) -> frozenset[int]:
        return repeated_sums(self.prompts)

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
    """What the images of one prompt have in common."""

    parameters: dict[str, Any]
    images: int
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
    """Hashes of what the manifest says about a task's pixels: prompt, seed, parameters, model and
    dtype.

    `model` is what `model.files.identity` returns. Fingerprints are recorded in every output
    folder: with another form of the hash all finished images would look changed.
    """

    def __init__(self, manifest: Manifest, model: Mapping[str, Any]) -> None:
        common = canonical({"model": dict(model), "dtype": manifest.dtype})
        self._common = hashlib.sha256(common.encode())
        self._parameters: tuple[Mapping[str, Any], str] = ({}, "{}")

    @property
    def common(self) -> str:
        """The hash of what all images share: the model and the dtype."""
        return self._common.hexdigest()

    def of(self, task: Task) -> str:
        """32 hexadecimal digits."""
        return self.digest(task).hex()

    def digest(self, task: Task) -> bytes:
        """The same as 16 bytes."""
        known, text = self._parameters
        if task.parameters is not known:
            text = canonical(task.parameters)
            self._parameters = (task.parameters, text)
        digest = self._common.copy()
        digest.update(f"{task.seed}\n{text}\n{task.prompt}".encode())
        return digest.digest()[:16]
