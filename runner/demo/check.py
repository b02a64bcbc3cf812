"""Does the model draw what the prompt says? Answered by pixels, against the drawing code.

    python -m runner.demo.check [--model DIR] [--count 240] [--height 128 --width 128]

For each prompt of a held-out combination, the picture is *read*: which sky with which sun or moon
explains its upper part best, then which terrain its lower part, then which thing the box where
things stand. Whatever explains a part best must also explain it well, or that part counts as
unreadable: a blob, a second moon or a half-drawn house is wrong even where it resembles nothing
else more. Nothing is learnt, so the check cannot share the model's blind spots.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runner.demo import MODEL_DIR, PARAMETERS
from runner.demo.captions import (
    BACKGROUNDS,
    LIGHTS,
    PLACES,
    SHAPE_COLOURS,
    SHAPES,
    SKIES,
    TERRAINS,
    THINGS,
    Landscape,
    Light,
    Scene,
    Shape,
    Thing,
    caption,
    random_scene,
)
from runner.demo.draw import Array, Size, draw, horizon, thing_box

CELL = 4  # pictures are compared as means of 4 × 4 pixels: a blurred edge is no mistake
UNREADABLE = 0.12  # root mean square difference, of colours in [0, 1]
Values = dict[str, object]  # what a scene says, by the names of ROWS

ROWS = (
    "background", "shape", "shape colour", "sky", "terrain kind", "terrain colour", "light kind",
    "light place", "light colour", "thing kind", "thing colour", "nothing added", "all right",
)  # fmt: skip


class Question(NamedTuple):
    """A prompt of the check and what it means."""

    prompt: str
    scene: Scene
    seed: int


def questions(count: int, seed: str = "check") -> list[Question]:
    """The first `count` questions, always the same ones."""
    rng = random.Random(seed)
    scenes = [random_scene(rng, held=True) for _ in range(count)]
    return [Question(caption(scene, rng), scene, i) for i, scene in enumerate(scenes)]


# --- reading a picture ------------------------------------------------------------------------


def shrink(picture: Array) -> Array:
    """(H, W, 3) -> (H / 4, W / 4, 3), by means."""
    height, width = picture.shape[:2]
    cells: Array = picture.reshape(height // CELL, CELL, width // CELL, CELL, 3).mean((1, 3))
    return cells


def read(picture: Array, shape: bool) -> Values:
    """What the picture shows, as a shape or as a landscape; unreadable parts are missing."""
    size = (picture.shape[0], picture.shape[1])
    small = shrink(picture)
    return _read_shape(small, size) if shape else _read_landscape(small, size)


def _best(small: Array, candidates: Iterable[tuple[Scene, Array]], where: Array) -> Scene | None:
    """The scene that is most like `small` where the mask is 1, if it is like it at all."""
    errors = [
        (float((where[..., None] * (small - seen) ** 2).sum()), scene) for scene, seen in candidates
    ]
    error, scene = min(errors, key=lambda pair: pair[0])
    return scene if (error / (3 * where.sum())) ** 0.5 < UNREADABLE else None


def _read_shape(small: Array, size: Size) -> Values:
    found = _best(small, _all_shapes(size), np.ones(small.shape[:2], np.float32))
    return values(found) if found else {}


def _read_landscape(small: Array, size: Size) -> Values:
    upper, ground, box = _regions(size)
    above = _best(small, _all_skies(size), upper)
    if not isinstance(above, Landscape):
        return {}
    found = _sky_values(above)
    places = [above._replace(terrain=t, colour=c) for t, row in TERRAINS.items() for c in row]
    below = _best(small, _drawn(places, size), ground)
    if not isinstance(below, Landscape):
        return found
    found |= {"terrain kind": below.terrain, "terrain colour": below.colour}
    things = [None, *(Thing(kind, c) for kind, row in THINGS.items() for c in row)]
    last = _best(small, _drawn([below._replace(thing=t) for t in things], size), box)
    return found | _thing_values(last) if isinstance(last, Landscape) else found


def _drawn(scenes: Iterable[Scene], size: Size) -> Iterator[tuple[Scene, Array]]:
    """What the scenes look like, both ways round, since no prompt says which."""
    for scene in scenes:
        for mirrored in (False, True):
            yield scene, shrink(draw(scene, size, mirrored))


@cache
def _all_shapes(size: Size) -> list[tuple[Scene, Array]]:
    scenes = [Shape(k, c, b) for k in SHAPES for c in SHAPE_COLOURS for b in BACKGROUNDS if b != c]
    return [(scene, shrink(draw(scene, size))) for scene in scenes]


@cache
def _all_skies(size: Size) -> list[tuple[Scene, Array]]:
    lights = [None, *(Light(k, c, p) for k, row in LIGHTS.items() for c in row for p in PLACES)]
    scenes = [Landscape(sky, "sea", "blue", light, None) for sky in SKIES for light in lights]
    return [(scene, shrink(draw(scene, size))) for scene in scenes]


@cache
def _regions(size: Size) -> tuple[Array, Array, Array]:
    """Where to look for the sky, the terrain and the thing, as masks over the shrunk picture."""
    upper, box = (np.zeros((size[0] // CELL, size[1] // CELL), np.float32) for _ in range(2))
    upper[: (horizon(size) - 24) // CELL] = 1
    x, y = thing_box(size)
    box[y // CELL : (y + 48) // CELL, x // CELL : (x + 48) // CELL] = 1
    return upper, np.clip(1 - upper - box, 0, 1), box


# --- comparing --------------------------------------------------------------------------------


def values(scene: Scene) -> Values:
    """Everything that a scene says, by name."""
    if isinstance(scene, Shape):
        return {"background": scene.background, "shape": scene.kind, "shape colour": scene.colour}
    ground = {"terrain kind": scene.terrain, "terrain colour": scene.colour}
    return _sky_values(scene) | ground | _thing_values(scene)


def _sky_values(scene: Landscape) -> Values:
    kind, colour, place = scene.light or (None, None, None)
    return {"sky": scene.sky, "light kind": kind, "light colour": colour, "light place": place}


def _thing_values(scene: Landscape) -> Values:
    kind, colour = scene.thing or (None, None)
    return {"thing kind": kind, "thing colour": colour}


def mark(picture: Array, scene: Scene) -> dict[str, bool]:
    """Which of the things that the scene says are right in the picture, and whether all are."""
    wanted = values(scene)
    seen = read(picture, isinstance(scene, Shape))
    right = {name: seen.get(name, "unreadable") == value for name, value in wanted.items()}
    absent = [name for name in ("light kind", "thing kind") if name in wanted and not wanted[name]]
    marks = {name: ok for name, ok in right.items() if wanted[name] is not None}
    if absent:
        marks["nothing added"] = all(right[name] for name in absent)
    return marks | {"all right": all(right.values())}


class Score:
    """Right answers and questions, by row."""

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    def add(self, marks: dict[str, bool]) -> None:
        self.asked.update(marks.keys())
        self.right.update(name for name, ok in marks.items() if ok)

    def share(self, row: str) -> float:
        return self.right[row] / self.asked[row]

    def table(self) -> str:
        lines = ["| what | right | of |", "| --- | --- | --- |"]
        lines += [
            f"| {row} | {self.share(row):.3f} | {self.asked[row]} |"
            for row in ROWS
            if self.asked[row]
        ]
        return "\n".join(lines)


# --- asking the model -------------------------------------------------------------------------


def pictures(
    pipeline: Any, asked: Sequence[Question], size: Size, batch: int = 8
) -> Iterator[Array]:
    """The model's answers with its default parameters, (H, W, 3) in [0, 1]."""
    import torch

    for start in range(0, len(asked), batch):
        some = asked[start : start + batch]
        made = pipeline(
            prompt=[question.prompt for question in some],
            **(PARAMETERS | {"height": size[0], "width": size[1]}),
            generator=[torch.Generator("cpu").manual_seed(question.seed) for question in some],
            output_type="np",
        )
        yield from made.images


def score(pipeline: Any, asked: Sequence[Question], size: Size = (128, 128)) -> Score:
    """The model's score on these questions."""
    total = Score()
    for question, picture in zip(asked, pictures(pipeline, asked, size), strict=True):
        total.add(mark(picture, question.scene))
    return total


def main() -> None:
    """Loads a model and prints its table."""
    import torch
    from diffusers import DiffusionPipeline

    parser = argparse.ArgumentParser(prog="python -m runner.demo.check")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    pipeline = DiffusionPipeline.from_pretrained(arguments.model, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    size = (arguments.height, arguments.width)
    print(score(pipeline, questions(arguments.count), size).table())


if __name__ == "__main__":
    main()
