"""The pictures that the demo model learns: scenes drawn as flat, layered posters.

A picture is a sky gradient with layers painted over it. A layer is a mask (H, W) in [0, 1], which
is the same for every picture and so is drawn once and kept, and a colour. Drawing a picture is
then a handful of numpy blends, about a millisecond, fast enough to draw while training.

Lengths are pixels; shapes sit on a grid of 8 because one latent pixel covers 8 × 8 pixels.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from runner.demo.captions import Landscape, Light, Scene, Shape

Array = NDArray[np.float32]
Size = tuple[int, int]  # (height, width)
RGB = tuple[int, int, int]

PALETTE: dict[str, RGB] = {
    "red": (215, 45, 50), "orange": (242, 135, 35), "yellow": (250, 212, 60),
    "green": (70, 160, 75), "blue": (45, 100, 205), "purple": (135, 75, 178),
    "pink": (246, 150, 185), "white": (250, 250, 250), "black": (28, 28, 32),
    "gray": (132, 138, 148), "turquoise": (45, 185, 178),
}  # fmt: skip
SKY_COLOURS: dict[str, tuple[RGB, RGB]] = {  # top, horizon
    "day": ((70, 150, 235), (190, 228, 250)),
    "dawn": ((120, 145, 215), (255, 205, 175)),
    "sunset": ((95, 60, 135), (250, 130, 70)),
    "night": ((12, 16, 50), (45, 55, 120)),
}
TINTS = {  # what the light of that hour does to everything on the ground
    "day": (1.0, 1.0, 1.0), "dawn": (1.0, 0.92, 0.92),
    "sunset": (0.95, 0.78, 0.78), "night": (0.6, 0.65, 0.88),
}  # fmt: skip
TRUNK, ROOF, DOOR, GLASS = (105, 70, 45), (95, 60, 55), (90, 55, 35), (255, 228, 130)
CACTUS, MEADOW, SNOW = (50, 130, 80), (95, 170, 80), (245, 247, 252)


class Layer(NamedTuple):
    """A mask and its paint: a fixed colour, or a shade of the scene's: -1 black … 1 white."""

    mask: Array
    paint: RGB | float


# --- masks ------------------------------------------------------------------------------------

FINE = 4  # masks are drawn this much larger and averaged down, which makes their edges smooth


class _Pen:
    """Draws one mask; coordinates are (x, y) in picture pixels."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.image = Image.new("L", (size[1] * FINE, size[0] * FINE))
        self.draw = ImageDraw.Draw(self.image)

    def polygon(self, *points: tuple[float, float], fill: int = 255) -> "_Pen":
        self.draw.polygon([(x * FINE, y * FINE) for x, y in points], fill=fill)
        return self

    def box(self, x0: float, y0: float, x1: float, y1: float) -> "_Pen":
        return self.polygon((x0, y0), (x1, y0), (x1, y1), (x0, y1))

    def oval(self, x: float, y: float, rx: float, ry: float, fill: int = 255) -> "_Pen":
        box = [(x - rx) * FINE, (y - ry) * FINE, (x + rx) * FINE, (y + ry) * FINE]
        self.draw.ellipse(box, fill=fill)
        return self

    def disc(self, x: float, y: float, r: float, fill: int = 255) -> "_Pen":
        return self.oval(x, y, r, r, fill)

    def mask(self) -> Array:
        small = self.image.resize((self.size[1], self.size[0]), Image.Resampling.BOX)
        return np.asarray(small, np.float32) / np.float32(255)


def horizon(size: Size) -> int:
    """Where the sky ends."""
    return 8 * round(size[0] * 0.6 / 8)


def light_centre(place: str, size: Size) -> tuple[int, int]:
    """The (x, y) of the sun or moon."""
    edge = min(32, size[1] // 4)
    x = {"left": edge, "middle": size[1] // 2, "right": size[1] - edge}[place]
    return x, 8 * round(horizon(size) / 20)


LIGHT_RADIUS = 20


def thing_box(size: Size) -> tuple[int, int]:
    """The (x, y) of the upper left corner of the 48 × 48 box where things stand."""
    return 16, size[0] - 56


# --- layers -----------------------------------------------------------------------------------


def _hills(size: Size) -> list[Layer]:
    (height, width), top = size, horizon(size)
    back = _Pen(size).oval(0.78 * width, top + 48, 0.62 * width, 56).box(0, top + 32, width, height)
    middle = _Pen(size).oval(0.15 * width, top + 60, 0.75 * width, 56)
    front = _Pen(size).oval(0.8 * width, height + 8, 0.7 * width, 32)
    paints = (0.25, 0.0, -0.2)
    return [
        Layer(pen.mask(), paint) for pen, paint in zip((back, middle, front), paints, strict=True)
    ]


def _mountains(size: Size) -> list[Layer]:
    (height, width), top = size, horizon(size)
    back, snow, front = _Pen(size), _Pen(size), _Pen(size)
    for share in (0.2, 0.9):
        x = 8 * round(share * width / 8)
        back.polygon((x, top - 16), (x - 72, height), (x + 72, height))
        snow.polygon((x, top - 16), (x - 12, top), (x - 4, top - 4), (x + 4, top), (x + 12, top))
    for share in (0.0, 0.55, 1.0):
        x = 8 * round(share * width / 8)
        front.polygon(
            (x, top + 8 if share == 0.55 else top + 24), (x - 56, height), (x + 56, height)
        )
    back.box(0, top + 32, width, height)
    ground = _Pen(size).box(0, height - 16, width, height)
    return [
        Layer(back.mask(), 0.2),
        Layer(snow.mask(), SNOW),
        Layer(front.mask(), -0.15),
        Layer(ground.mask(), -0.4),
    ]


def _sea(size: Size) -> list[Layer]:
    (height, width), top = size, horizon(size)
    waves = _Pen(size)
    for row, y in enumerate(range(top + 12, height, 16)):
        for x in range(-16 + 16 * (row % 2), width, 32):
            waves.polygon((x, y + 2), (x + 8, y - 2), (x + 16, y + 2), (x + 8, y))
    water = _Pen(size).box(0, top, width, height)
    return [Layer(water.mask(), 0.0), Layer(waves.mask(), 0.5)]


def _desert(size: Size) -> list[Layer]:
    (height, width), top = size, horizon(size)
    crest, second = 0.6 * width, 0.3 * width
    back = _Pen(size).polygon(
        (0, top + 16), (crest, top - 8), (width, top + 16), (width, height), (0, height)
    )
    shade = _Pen(size).polygon((crest, top - 8), (width, top + 16), (width, height))
    front = _Pen(size).polygon((0, top + 32), (second, top + 16), (width, height), (0, height))
    x, y = 8 * round(0.82 * width / 8), height - 12
    cactus = (
        _Pen(size)
        .box(x - 4, y - 40, x + 4, y)
        .disc(x, y - 40, 4)
        .box(x - 14, y - 24, x, y - 18)
        .box(x - 14, y - 34, x - 8, y - 18)
        .box(x, y - 18, x + 14, y - 12)
        .box(x + 8, y - 30, x + 14, y - 12)
    )
    return [
        Layer(back.mask(), 0.2),
        Layer(shade.mask(), -0.15),
        Layer(front.mask(), 0.0),
        Layer(cactus.mask(), CACTUS),
    ]


def _forest(size: Size) -> list[Layer]:
    (height, width), top = size, horizon(size)
    back, front, trunks = _Pen(size), _Pen(size), _Pen(size)
    for x in range(0, width + 1, 32):
        back.polygon((x, top - 16), (x - 18, height), (x + 18, height))
    back.box(0, top + 24, width, height)
    for x in range(16, width, 32):
        trunks.box(x - 3, height - 16, x + 3, height)
        for step in (0, 14, 28):
            front.polygon(
                (x, top + step),
                (x - 9 - step / 4, top + step + 20),
                (x + 9 + step / 4, top + step + 20),
            )
    return [Layer(back.mask(), -0.45), Layer(trunks.mask(), TRUNK), Layer(front.mask(), 0.0)]


def _flowers(size: Size) -> list[Layer]:
    (height, width), top = size, horizon(size)
    meadow = _Pen(size).oval(width / 2, top + 40, width, 48).box(0, top + 16, width, height)
    petals, hearts = _Pen(size), _Pen(size)
    for row, y in enumerate(range(top + 16, height, 16)):
        for x in range(8 + 16 * (row % 2), width + 8, 32):
            for dx, dy in ((4, 0), (-4, 0), (0, 4), (0, -4)):
                petals.disc(x + dx, y + dy, 4.5)
            hearts.disc(x, y, 3)
    return [
        Layer(meadow.mask(), MEADOW),
        Layer(petals.mask(), 0.0),
        Layer(hearts.mask(), (235, 150, 40)),
    ]


def _house(size: Size) -> list[Layer]:
    x, y = thing_box(size)
    wall = _Pen(size).box(x + 4, y + 20, x + 44, y + 48)
    roof = _Pen(size).polygon((x + 24, y), (x - 2, y + 22), (x + 50, y + 22))
    door = _Pen(size).box(x + 28, y + 30, x + 38, y + 48)
    window = _Pen(size).box(x + 10, y + 28, x + 20, y + 38)
    return [
        Layer(wall.mask(), 0.0),
        Layer(roof.mask(), ROOF),
        Layer(door.mask(), DOOR),
        Layer(window.mask(), GLASS),
    ]


def _tree(size: Size) -> list[Layer]:
    x, y = thing_box(size)
    trunk = _Pen(size).polygon(
        (x + 20, y + 28), (x + 28, y + 28), (x + 31, y + 48), (x + 17, y + 48)
    )
    crown = _Pen(size).disc(x + 24, y + 13, 14).disc(x + 12, y + 22, 12).disc(x + 36, y + 22, 12)
    gleam = _Pen(size).disc(x + 19, y + 11, 6)
    return [Layer(trunk.mask(), TRUNK), Layer(crown.mask(), 0.0), Layer(gleam.mask(), 0.25)]


def _boat(size: Size) -> list[Layer]:
    x, y = thing_box(size)
    hull = _Pen(size).polygon((x, y + 34), (x + 48, y + 34), (x + 38, y + 46), (x + 10, y + 46))
    mast = _Pen(size).box(x + 23, y, x + 26, y + 34)
    sails = (
        _Pen(size)
        .polygon((x + 27, y + 2), (x + 27, y + 31), (x + 46, y + 31))
        .polygon((x + 22, y + 8), (x + 22, y + 31), (x + 5, y + 31))
    )
    return [Layer(mast.mask(), TRUNK), Layer(hull.mask(), -0.25), Layer(sails.mask(), 0.0)]


def _shape_layers(kind: str, size: Size) -> list[Layer]:
    (x, y), pen = (size[1] / 2, size[0] / 2), _Pen(size)
    r = 40 if min(size) >= 128 else 32
    if kind == "circle":
        pen.disc(x, y, r)
    elif kind == "square":
        pen.box(x - 0.9 * r, y - 0.9 * r, x + 0.9 * r, y + 0.9 * r)
    elif kind == "triangle":
        pen.polygon((x, y - r), (x + 1.1 * r, y + 0.8 * r), (x - 1.1 * r, y + 0.8 * r))
    elif kind == "star":
        turns = np.arange(10) * np.pi / 5
        spokes = np.where(np.arange(10) % 2, 0.45, 1.15) * r
        xs, ys = x + spokes * np.sin(turns), y + 4 - spokes * np.cos(turns)
        pen.polygon(*zip(xs, ys, strict=True))
    else:  # heart
        for side in (-1, 1):
            pen.disc(x + side * 0.48 * r, y - 0.35 * r, 0.52 * r)
        pen.polygon(
            (x - 0.93 * r, y - 0.1 * r), (x, y - 0.4 * r), (x + 0.93 * r, y - 0.1 * r), (x, y + r)
        )
    return [Layer(pen.mask(), 0.0)]


def _light_layers(light: Light, size: Size) -> list[Layer]:
    x, y = light_centre(light.place, size)
    if light.kind == "moon":
        crescent = _Pen(size).disc(x, y, LIGHT_RADIUS).disc(x + 9, y - 5, LIGHT_RADIUS - 4, fill=0)
        return [Layer(crescent.mask(), 0.0)]
    glow = _Pen(size).disc(x, y, LIGHT_RADIUS + 8, fill=80)
    return [Layer(glow.mask(), 0.0), Layer(_Pen(size).disc(x, y, LIGHT_RADIUS).mask(), 0.0)]


def _stars(size: Size) -> list[Layer]:
    pen, lights = _Pen(size), [light_centre(p, size) for p in ("left", "middle", "right")]
    for row, y in enumerate(range(4, horizon(size) - 16, 12)):
        for x in range(4 + 16 * (row % 2), size[1], 24):
            # Between the places of the moon: a star inside a crescent would look odd.
            if all((x - lx) ** 2 + (y - ly) ** 2 > (LIGHT_RADIUS + 3) ** 2 for lx, ly in lights):
                pen.polygon((x - 3, y), (x, y - 3), (x + 3, y), (x, y + 3))
    return [Layer(pen.mask(), (235, 235, 210))]


_TERRAIN: dict[str, Callable[[Size], list[Layer]]] = {
    "hills": _hills, "mountains": _mountains, "sea": _sea, "desert": _desert, "forest": _forest,
    "flowers": _flowers,
}  # fmt: skip
_THING = {"house": _house, "tree": _tree, "boat": _boat}


@cache
def _terrain_layers(kind: str, size: Size, mirrored: bool) -> list[Layer]:
    layers = _TERRAIN[kind](size)
    if not mirrored:
        return layers
    # The cactus stays where it is: mirrored, it would stand behind the house.
    return [
        layer
        if layer.paint == CACTUS
        else Layer(np.ascontiguousarray(layer.mask[:, ::-1]), layer.paint)
        for layer in layers
    ]


_thing_layers = lru_cache(maxsize=None)(lambda kind, size: _THING[kind](size))
_cached_light = lru_cache(maxsize=None)(_light_layers)
_cached_shape = lru_cache(maxsize=None)(_shape_layers)
_cached_stars = lru_cache(maxsize=None)(_stars)


# --- pictures ---------------------------------------------------------------------------------


def draw(scene: Scene, size: Size, mirrored: bool = False) -> Array:
    """The picture of a scene, (H, W, 3) in [0, 1].

    `mirrored` turns the terrain around: the one thing that no caption names, so the one thing
    that the seed decides.
    """
    if isinstance(scene, Shape):
        picture = np.empty((*size, 3), np.float32)
        picture[:] = unit(PALETTE[scene.background])
        _paint(picture, _cached_shape(scene.kind, size), scene.colour)
        return picture
    return _draw_landscape(scene, size, mirrored)


def _draw_landscape(scene: Landscape, size: Size, mirrored: bool) -> Array:
    picture = _sky(scene.sky, size).copy()
    if scene.sky == "night":
        _paint(picture, _cached_stars(size), "white")
    if scene.light:
        _paint(picture, _cached_light(scene.light, size), scene.light.colour)
    tint = TINTS[scene.sky]
    _paint(picture, _terrain_layers(scene.terrain, size, mirrored), scene.colour, tint)
    if scene.thing:
        half = (tint[0] ** 0.5, tint[1] ** 0.5, tint[2] ** 0.5)  # a thing keeps more of its colour
        _paint(picture, _thing_layers(scene.thing.kind, size), scene.thing.colour, half)
    return picture


@cache
def _sky(sky: str, size: Size) -> Array:
    top, bottom = (unit(colour) for colour in SKY_COLOURS[sky])
    down = np.minimum(np.arange(size[0], dtype=np.float32) / horizon(size), 1)[:, None, None]
    return np.broadcast_to(top + down * (bottom - top), (*size, 3)).astype(np.float32)


def _paint(
    picture: Array,
    layers: list[Layer],
    colour: str,
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> None:
    """Blends the layers over the picture, in place."""
    for layer in layers:
        light = (1.0, 1.0, 1.0) if layer.paint == GLASS else tint  # windows shine at night
        paint = _paint_colour(layer.paint, colour) * np.array(light, np.float32)
        picture += layer.mask[..., None] * (paint - picture)


def _paint_colour(paint: RGB | float, colour: str) -> Array:
    if isinstance(paint, tuple):
        return unit(paint)
    base = unit(PALETTE[colour])
    return base + np.float32(abs(paint)) * (np.float32(paint > 0) - base)


def unit(colour: RGB) -> Array:
    """The colour as three floats in [0, 1]."""
    return np.array(colour, np.float32) / np.float32(255)
