"""What the demo model can be asked for: scenes, their captions, and which of them are held out.

A *scene* is everything that decides a picture, a *caption* one way of asking for it. The rule that
keeps the task learnable by a tiny model: whatever a caption leaves out has one fixed value (no sky
named: day; no place named: the middle; no sun named: none). Otherwise the model has to average over
the possibilities, and a picture with two half moons is what the average looks like.

Pure Python on purpose: `runner.demo` imports this file without numpy or torch.
"""

import hashlib
import random
from typing import NamedTuple

# The first value of each row is what a caption means when it leaves that word out.
SHAPES = ("circle", "square", "triangle", "star", "heart")
SHAPE_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
BACKGROUNDS = ("white", "black", "red", "orange", "yellow", "green", "blue", "purple")
SKIES = ("day", "dawn", "sunset", "night")
TERRAINS = {
    "hills": ("green", "yellow", "purple"),
    "mountains": ("gray", "blue", "purple"),
    "sea": ("blue", "turquoise"),
    "desert": ("yellow", "orange", "red"),
    "forest": ("green", "orange"),
    "flowers": ("red", "yellow", "purple", "white"),
}
LIGHTS = {"sun": ("yellow", "orange", "red"), "moon": ("white", "yellow", "orange")}
PLACES = ("middle", "left", "right")
THINGS = {
    "house": ("red", "white", "blue"),
    "tree": ("green", "orange", "pink"),
    "boat": ("white", "red", "yellow"),
}

SHAPE_SHARE = 0.25  # of all pictures
LIGHT_SHARE = 0.75  # of the landscapes
THING_SHARE = 0.7  # of the landscapes: things are learnt last, so they come often
UNKNOWN = "[UNK]"  # how the tokenizer spells every word it does not know


class Shape(NamedTuple):
    """One large shape in the middle of a plain background."""

    kind: str
    colour: str
    background: str


class Light(NamedTuple):
    """The sun or the moon."""

    kind: str
    colour: str
    place: str


class Thing(NamedTuple):
    """A house, a tree or a boat; it always stands at the same place."""

    kind: str
    colour: str


class Landscape(NamedTuple):
    """A sky over a terrain, perhaps with a light in the one and a thing on the other."""

    sky: str
    terrain: str
    colour: str  # of the terrain
    light: Light | None
    thing: Thing | None


Scene = Shape | Landscape


def held_out(scene: Scene) -> bool:
    """Whether training never shows this combination: one scene in eight, chosen by hash."""
    return hashlib.sha256(repr(scene).encode()).digest()[0] < 32


def random_scene(rng: random.Random, held: bool) -> Scene:
    """A random scene: one for the check (`held`) or one to train on."""
    while True:
        scene = _shape(rng) if rng.random() < SHAPE_SHARE else _landscape(rng)
        if held_out(scene) == held:
            return scene


def _shape(rng: random.Random) -> Shape:
    colour = rng.choice(SHAPE_COLOURS)
    return Shape(rng.choice(SHAPES), colour, rng.choice([b for b in BACKGROUNDS if b != colour]))


def _landscape(rng: random.Random) -> Landscape:
    sky = rng.choice(SKIES)
    terrain = rng.choice(list(TERRAINS))
    light = thing = None
    if rng.random() < LIGHT_SHARE:
        kind = "moon" if sky == "night" else rng.choice(["sun", "sun", "moon"])
        light = Light(kind, rng.choice(LIGHTS[kind]), rng.choice(PLACES))
    if rng.random() < THING_SHARE:
        kind = rng.choice(things_on(terrain))
        thing = Thing(kind, rng.choice(THINGS[kind]))
    return Landscape(sky, terrain, rng.choice(TERRAINS[terrain]), light, thing)


def things_on(terrain: str) -> tuple[str, ...]:
    """What may stand there: boats on the sea, no single tree before a forest."""
    return {"sea": ("boat",), "forest": ("house",)}.get(terrain, ("house", "tree"))


# --- captions ---------------------------------------------------------------------------------

_SKY_PHRASES = {
    "day": ("by day", "during the day", "in daylight", "under a blue sky", "at noon"),
    "dawn": ("at dawn", "at sunrise", "in the morning"),
    "sunset": ("at sunset", "at dusk", "in the evening"),
    "night": ("at night", "by night", "under a night sky", "under the stars"),
}
_TERRAIN_PHRASES = {  # (preposition before it, the phrase with its colour)
    "hills": (("on", "{c} hills"), ("on", "a {c} hill"), ("in front of", "{c} hills")),
    "mountains": (("in front of", "{c} mountains"), ("in", "the {c} mountains")),
    "sea": (("on", "a {c} sea"), ("on", "the {c} sea"), ("on", "the {c} ocean")),
    "desert": (("in", "a {c} desert"), ("in", "the {c} desert")),
    "forest": (("in", "a {c} forest"), ("in front of", "a {c} forest")),
    "flowers": (("in", "a field of {c} flowers"), ("among", "{c} flowers")),
}
_PLACE_PHRASES = {
    "left": ("on the left", "at the left", "left"),
    "right": ("on the right", "at the right", "right"),
    "middle": ("in the middle", "in the center", "in the centre"),
}


def caption(scene: Scene, rng: random.Random) -> str:
    """One of the ways to ask for `scene`."""
    if isinstance(scene, Shape):
        return _shape_caption(scene, rng)
    return _landscape_caption(scene, rng)


def _said(value: str, default: str, rng: random.Random) -> str:
    """The word, or sometimes nothing where nothing means the same."""
    return "" if value == default and rng.random() < 0.5 else value


def _tidy(text: str) -> str:
    text = " ".join(text.split()).replace(" ,", ",")
    return text.replace("a orange", "an orange").replace("a ocean", "an ocean")


def _shape_caption(scene: Shape, rng: random.Random) -> str:
    colour = _said(scene.colour, SHAPE_COLOURS[0], rng)
    size = rng.choice(["", "", "large", "big"])
    shape = f"{size} {colour} {scene.kind}"
    if not _said(scene.background, BACKGROUNDS[0], rng):
        return _tidy(f"a {shape}")
    ground = scene.background
    forms = (
        f"a {shape} on a {ground} background",
        f"a {shape} on {ground}",
        f"{shape} on a {ground} background",
        f"a {ground} background with a {shape}",
    )
    return _tidy(rng.choice(forms))


def _landscape_caption(scene: Landscape, rng: random.Random) -> str:
    terrains = TERRAINS[scene.terrain]
    preposition, phrase = rng.choice(_TERRAIN_PHRASES[scene.terrain])
    terrain = phrase.format(c=_said(scene.colour, terrains[0], rng))
    sky = rng.choice(_SKY_PHRASES[scene.sky]) if _said(scene.sky, SKIES[0], rng) else ""
    light = _light_caption(scene.light, rng) if scene.light else ""
    if not scene.thing:
        parts = [f"{terrain} {sky}", light]
    else:
        thing = (
            f"a {_said(scene.thing.colour, THINGS[scene.thing.kind][0], rng)} {scene.thing.kind}"
        )
        home = "sea" if scene.thing.kind == "boat" else "hills"
        if (scene.terrain, scene.colour) == (home, TERRAINS[home][0]) and rng.random() < 0.3:
            parts = [f"{thing} {sky}", light]
        elif rng.random() < 0.25:
            parts = [f"{terrain} {sky}", thing, light]
        else:
            parts = [f"{thing} {preposition} {terrain} {sky}", light]
    parts = [part for part in parts if part]
    if light and rng.random() < 0.15:
        parts = [parts[-1], *parts[:-1]]
    return _tidy(rng.choice([", ", ", ", " and ", " with "]).join(parts))


def _light_caption(light: Light, rng: random.Random) -> str:
    colour = _said(light.colour, LIGHTS[light.kind][0], rng)
    place = rng.choice(_PLACE_PHRASES[light.place]) if _said(light.place, PLACES[0], rng) else ""
    return f"{rng.choice(['a', 'the'])} {colour} {light.kind} {place}"


def with_unknown_words(text: str, rng: random.Random, share: float) -> str:
    """`text` with unknown words strewn in, so that the model learns to pass over them."""
    words: list[str] = []
    for word in text.split():
        if rng.random() < share:
            words.append(UNKNOWN)
        words.append(word)
    return " ".join(words)


# --- words ------------------------------------------------------------------------------------

FILLERS = frozenset(
    ("a", "an", "the", "on", "in", "at", "by", "of", "and", "with", "under", "front", "during",
     "among")
)  # fmt: skip


def _all_words() -> frozenset[str]:
    phrases: list[str] = [*SHAPES, *SHAPE_COLOURS, *BACKGROUNDS, *FILLERS, "background large big"]
    for table in (_SKY_PHRASES, _PLACE_PHRASES):
        phrases += [phrase for options in table.values() for phrase in options]
    for options in _TERRAIN_PHRASES.values():
        phrases += [word for pair in options for word in pair]
    for colours in (TERRAINS, LIGHTS, THINGS):
        phrases += [word for kind, row in colours.items() for word in (kind, *row)]
    return frozenset(word for phrase in phrases for word in phrase.replace("{c}", "").split())


WORDS = _all_words()
