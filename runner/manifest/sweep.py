"""A sweep: every prompt once for each combination of values."""

import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, field_validator

from runner.manifest.loras import check_weights
from runner.manifest.prompts import MAX_SEED, check_parameter
from runner.manifest.scheduler import scheduler_value
from runner.manifest.words import MAX_VALUE
from runner.say import cut
from runner.settings import KeyFault, Settings

__all__ = ["Point", "Sweep", "points_of", "slots_in"]


MAX_POINTS = 100_000
# The axes that are no parameters; beside them the names of LoRAs, for their weights.
SEED, SCHEDULER, LORAS = "seed", "scheduler", "loras"
NO_AXES = {  # → what to do instead
    **dict.fromkeys(("num_images_per_prompt", "variations"), "set variations for all prompts"),
    **dict.fromkeys(("id", "index", "prompt_index", "variation"), "give the word another name"),
}

Values = Annotated[list[JsonValue], Field(min_length=1)]


def _check_axes(axes: dict[str, list[JsonValue]]) -> dict[str, list[JsonValue]]:
    for name, values in axes.items():
        if name in NO_AXES:
            raise ValueError(f"{name} is no axis of a sweep; {NO_AXES[name]}")
        if not name.strip():
            raise ValueError("an axis has no name; write that of a parameter, or of a word")
        try:
            for value in values:
                _check_value(name, value)
        except ValueError as error:
            raise KeyFault(name, str(error)) from None
    return axes


def _check_value(name: str, value: JsonValue) -> None:
    if name == SCHEDULER:
        scheduler_value(value)
    elif name == LORAS:
        if not isinstance(value, dict):
            raise ValueError("loras: each value is a mapping of LoRAs to weights, or {} for none")
        check_weights(value)
    elif name != SEED:
        check_parameter(name, value)
    elif type(value) is not int or not 0 <= value <= MAX_SEED:
        given = cut(json.dumps(value), MAX_VALUE)
        raise ValueError(f"seed must be a whole number from 0 to {MAX_SEED}, not {given}")


Axes = Annotated[dict[str, Values], AfterValidator(_check_axes)]


class Sweep(Settings):
    """`product`: every value with every other; `zip`: the first values, the second ones, …"""

    product: Axes = Field(
        default_factory=dict,
        description="axes whose values are all combined; an axis is a parameter, seed, "
        "scheduler, a LoRA (its weights), or a word in braces in every prompt",
        examples=[{"guidance_scale": [2.5, 3.5], "animal": ["cat", "dog"]}],
    )
    zip: Axes = Field(
        default_factory=dict,
        description="axes whose values go together: the first values, the second ones, …",
        examples=[{"height": [1024, 768], "width": [768, 1024]}],
    )

    @field_validator("product")
    @classmethod
    def _each_once(cls, axes: dict[str, list[JsonValue]]) -> dict[str, list[JsonValue]]:
        for name, values in axes.items():
            words = [json.dumps(value) for value in values]
            twice = next((word for word in words if words.count(word) > 1), None)
            if twice is not None:
                raise ValueError(f"{name}: {cut(twice, MAX_VALUE)} is there twice; keep one")
        _refuse_many(math.prod(map(len, axes.values())))
        return axes

    @field_validator("zip")
    @classmethod
    def _equal_lengths(
        cls, axes: dict[str, list[JsonValue]], info: ValidationInfo
    ) -> dict[str, list[JsonValue]]:
        product = info.data.get("product", {})
        if both := sorted(axes.keys() & product.keys()):
            raise ValueError(f"{both[0]} is an axis of product, too; keep one")
        if len({len(values) for values in axes.values()}) > 1:
            lengths = ", ".join(f"{name} has {len(values)}" for name, values in axes.items())
            raise ValueError(f"the lists must be of one length: {lengths}")
        rows = len(next(iter(axes.values()), [0]))
        _refuse_many(rows * math.prod(map(len, product.values())))
        return axes

    @property
    def axes(self) -> list[str]:
        return [*self.product, *self.zip]

    def combinations(self) -> list[dict[str, JsonValue]]:
        """The values of each point; the last axis of `product` changes fastest, but for `zip`."""
        rows = zip(*self.zip.values(), strict=True)
        zipped = [dict(zip(self.zip, row, strict=True)) for row in rows] or [{}]
        products = itertools.product(*self.product.values())
        return [
            {**dict(zip(self.product, row, strict=True)), **last}
            for row in products
            for last in zipped
        ]


def _refuse_many(points: int) -> None:
    if points > MAX_POINTS:
        raise ValueError(f"{points} combinations; {MAX_POINTS} are the most")


class Point(NamedTuple):
    """One combination of a sweep's values, and where each of them goes."""

    values: Mapping[str, Any] = {}
    parameters: Mapping[str, Any] = {}
    slots: Mapping[str, str] = {}  # `{animal}` → cat
    seed: int | None = None

    @property
    def weights(self) -> Mapping[str, float]:
        """Of LoRAs, by name."""
        found: Mapping[str, float] = self.parameters.get(LORAS, {})
        return found

    def fill(self, text: str) -> str:
        """The text with its slots filled."""
        if not self.slots:
            return text
        pattern = "|".join(map(re.escape, self.slots))
        return re.sub(pattern, lambda found: self.slots[found[0]], text)

    @property
    def what(self) -> str:
        """Equal for points that make the same images: a word that is 1 is the number 1, and the
        number 1.0 as well."""
        plain = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in self.parameters.items()
        }
        return json.dumps([plain, self.slots, self.seed], sort_keys=True)


def slots_in(axes: Iterable[str], texts: Iterable[str]) -> set[str]:
    """The axes that a text has in braces: `{animal}`."""
    left, found = {name for name in axes if name != SEED}, set[str]()
    for text in texts:
        found |= {name for name in left - found if f"{{{name}}}" in text}
        if found == left:
            break
    return found


def points_of(sweep: Sweep, slots: set[str], loras: Collection[str] = ()) -> list[Point]:
    """`loras` are the names of the manifest's. Raises ValueError for a value that cannot stand in a
    text, and for one picture twice."""
    points = [_point(values, slots, {*loras} - slots) for values in sweep.combinations()]
    seen = set[str]()
    for point in points:
        if point.what in seen:
            given = cut(json.dumps(point.values, ensure_ascii=False), MAX_VALUE)
            raise ValueError(f"{given} makes the same images twice; keep one")
        seen.add(point.what)
    return points


def _point(values: Mapping[str, JsonValue], slots: set[str], loras: set[str]) -> Point:
    seed = values.get(SEED)
    weights = {name: value for name, value in values.items() if name in loras}
    check_weights(weights)
    whole = values.get(LORAS)
    weights |= whole if isinstance(whole, dict) else {}
    return Point(
        values,
        {
            name: scheduler_value(value) if name == SCHEDULER else value
            for name, value in values.items()
            if name not in {SEED, LORAS, *slots, *loras}
        }
        | ({LORAS: weights} if weights or LORAS in values else {}),
        {f"{{{name}}}": _word(name, values[name]) for name in values if name in slots},
        seed if isinstance(seed, int) else None,
    )


def _word(name: str, value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    given = cut(json.dumps(value), MAX_VALUE)
    raise ValueError(f"{name} stands in prompts as {{{name}}}, so {given} must be text; quote it")
