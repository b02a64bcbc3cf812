"""The runner's images of a tiny pipeline, beside those of plain diffusers."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from support.launches import Ended, Launcher
from support.tiny.model import Model

__all__ = [
    "LIMIT",
    "Case",
    "Difference",
    "Fault",
    "Made",
    "Plain",
    "Refused",
    "check",
    "difference",
    "launch",
    "plain",
]

SEED = 7
REFUSED = 2  # the exit code
LOADING = "cannot be loaded"  # refused only as weights were loaded
INCOMPLETE = 75  # the exit code for "run again to go on"
LIMIT = 1  # of 255, anywhere in an image
TEXTS = ("a fox", "a red fox in the snow", "the moon over a green hill by the sea")
NEGATIVE, OTHER_NEGATIVE = "blue sea", "a cat on the tree"


class Refused(Exception):
    """The runner refused the manifest before weights loaded; its words."""


class Fault(Exception):
    """What must not happen: it failed after that, or made another image."""


class Difference(Fault):
    """An image is another than plain diffusers makes."""


@dataclass(frozen=True, slots=True)
class Made:
    """A folder of images as arrays (H, W, C), in index order, with their records."""

    images: Sequence[NDArray[np.int16]]
    records: Sequence[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """A saved pipeline and the images that are asked of it."""

    model: Path
    like: Model
    texts: Sequence[str] = TEXTS

    def prompts(self) -> list[dict[str, Any]]:
        """Texts of unequal length, one with a negative text of its own, and the first once more in
        a size of its own. Each has its own input images."""
        prompts: list[dict[str, Any]] = [{"prompt": text} for text in self.texts]
        if self.like.negative:
            prompts[1]["parameters"] = {"negative_prompt": OTHER_NEGATIVE}
        if self.like.own:
            prompts.append({"prompt": self.texts[0], "parameters": dict(self.like.own)})
        for place, prompt in enumerate(prompts):
            files = {name: str(self.input_image(name, place)) for name in self.like.inputs}
            if files:
                prompt["parameters"] = {**prompt.get("parameters", {}), **files}
        return prompts

    def input_image(self, name: str, place: int) -> Path:
        """A file of blotches, or of a mask whose upper part is white."""
        path = self.model.with_name("inputs") / f"{name}-{place}.png"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            blotches = np.random.default_rng(place).integers(0, 255, (4, 4, 3), dtype=np.uint8)
            if "mask" in name:
                blotches[:] = 0
                blotches[: 1 + place % 3] = 255
            side = self.like.input_side
            Image.fromarray(blotches).resize((side, side), Image.Resampling.NEAREST).save(path)
        return path

    def parameters(self) -> dict[str, Any]:
        negative = {"negative_prompt": NEGATIVE} if self.like.negative else {}
        return {**self.like.parameters, **negative}

    def calls(self) -> list[dict[str, Any]]:
        """The arguments of plain calls, one an image, with `seed` for its generator."""
        return [
            {
                "prompt": prompt["prompt"],
                "seed": SEED + place,
                **self.parameters(),
                **prompt.get("parameters", {}),
            }
            for place, prompt in enumerate(self.prompts())
        ]

    def manifest(self, folder: Path, **others: Any) -> Path:
        """Written as JSON, which YAML contains."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "model": str(self.model),
            "dtype": "float32",
            "seed": SEED,
            "output": str(folder / "out"),
            "parameters": self.parameters(),
            "prompts": self.prompts(),
            **others,
        }
        path = folder / "job.yaml"
        path.write_text(json.dumps(values))
        return path


@dataclass(frozen=True, slots=True)
class Plain:
    """What plain diffusers makes of a case: one call an image."""

    made: Made
    batch: str  # how a batch differs from that, "" where it does not
    text: int  # of 255, by how much another text changes an image
    image: int | None  # the same for another input image; None without any
    is_steady: bool  # the same call makes the same image


def plain(ranks: Launcher, case: Case, folder: Path) -> Plain:
    """Raises Fault where diffusers itself fails."""
    folder.mkdir(parents=True)
    calls = folder / "calls.json"
    calls.write_text(json.dumps(case.calls()))
    ended = ranks(1, case.model, calls, folder, function="support.plain:main", folder=folder)
    if ended.codes != [0]:
        raise Fault(f"diffusers fails: {_last(ended.words)}")
    values = json.loads((folder / "plain.json").read_text())
    if "failed" in values:
        raise Fault(f"diffusers fails: {values['failed']}")
    images = [np.load(folder / f"plain-{place}.npy") for place in range(len(case.calls()))]
    told = (values[name] for name in ("batch", "text", "image", "is_steady"))
    return Plain(Made(images), *told)


def launch(ranks: Launcher, path: Path, world_size: int = 1) -> Made:
    """Run a manifest. Raises Fault, or Refused where it was refused at the start."""
    # The runner's own comparison would hide what it makes of a class that is not proven yet.
    patches = ["support.patches:proven"]
    ended = ranks(world_size, path, patches=patches, folder=path.parent)
    if INCOMPLETE in ended.codes:  # a busy machine can lose the launcher's store: run again
        ended = ranks(world_size, path, patches=patches, folder=path.parent)
    if ended.codes[0] == REFUSED and LOADING not in ended.words:
        raise Refused(_last(ended.words))
    if set(ended.codes) != {0}:
        raise Fault(_why_not(ended, path.parent))
    return made(path.parent / "out")


def check(ranks: Launcher, path: Path, world_size: int = 1) -> None:
    """Plan a manifest, as before any launch of it. Raises Refused or Fault."""
    ended = ranks(1, "plan", path, "--world-size", world_size, folder=path.parent)
    if ended.codes == [REFUSED]:
        raise Refused(_last(ended.words))
    if ended.codes != [0]:
        raise Fault(f"plan ends with {ended.codes}: {_last(ended.words)}")


def made(folder: Path) -> Made:
    """What is in an output folder."""
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return Made([pixels(folder / record["file_name"]) for record in records], records)


def pixels(path: Path) -> NDArray[np.int16]:
    return np.asarray(Image.open(path)).astype(np.int16)


def difference(one: Made, other: Made) -> int:
    """The largest, of 255. Raises Difference where it is over the limit, or shapes differ."""
    largest = 0
    for place, (left, right) in enumerate(zip(one.images, other.images, strict=True)):
        if left.shape != right.shape:
            raise Difference(f"image {place} is {left.shape}, not {right.shape}")
        apart = int(np.abs(left - right).max())
        if apart > LIMIT:
            raise Difference(f"image {place} is {apart} of 255 off")
        largest = max(largest, apart)
    return largest


def _why_not(ended: Ended, folder: Path) -> str:
    failures = folder / "out" / "failures.jsonl"
    if failures.exists() and (lines := failures.read_text().splitlines()):
        return f"{len(lines)} images failed: {_plain(json.loads(lines[0])['error'])}"
    return f"exit {ended.codes}: {_last(ended.words)}"


def _last(words: str) -> str:
    """The last line, with the names of files but not where they lie."""
    lines = [line for line in words.splitlines() if line.strip()]
    return _plain(lines[-1].removeprefix("runner: ")) if lines else "no word"


def _plain(words: str) -> str:
    return re.sub(r"(?<!\S)(/[\w.-]+)+/", "", words)[:300]
