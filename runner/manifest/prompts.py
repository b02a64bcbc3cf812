"""What a prompt is: its text, seed and parameters, and the checks of them."""

import itertools
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from runner.manifest.loras import Weights
from runner.manifest.scheduler import SchedulerSpec
from runner.manifest.words import MAX_VALUE
from runner.model.input_names import is_input
from runner.model.signature import SETUP
from runner.say import cut
from runner.settings import KeyFault, Settings, ShortForm, Text

__all__ = [
    "COUNT",
    "COUNTS",
    "MAX_SEED",
    "PROMPT_INPUTS",
    "SHORT_PROMPT",
    "Id",
    "Parameters",
    "Prompt",
    "PromptItem",
    "Scheduler",
    "Seed",
    "Seeds",
    "Variations",
    "alone",
    "check_name",
    "check_parameter",
    "is_text",
    "repeated",
    "text_sums",
]

MAX_SEED = 2**63 - 1  # what torch.Generator.manual_seed takes on every platform
MAX_IMAGES = 100_000  # of one prompt
MAX_COUNT = 100_000  # pixels of a side, steps, tokens
MAX_FLOAT = 3.4e38  # about what a 32-bit float holds: with more, no image has finite values

# Parameters that the runner passes to the pipeline call itself, or that would break one image per
# task → what to write instead.
RESERVED = {
    "self": None,
    "prompt": "prompts",
    "seed": "the prompt's seed",
    "generator": "seed",
    "output_type": None,
    "return_dict": None,
    "latents": None,
}
CALLBACKS = re.compile(r"(prior_)?callback(_.*)?")
TENSORS = re.compile(r".*prompt_embeds(?!_scale).*|.*prompt.*_mask(_2)?")  # made from the texts
COUNT = "num_images_per_prompt"
COUNTS = ("height", "width", "num_inference_steps", COUNT, "max_sequence_length")
PROMPT_INPUTS = ("image", "mask_image", "control_image")  # parameters that are keys of a prompt
MANY = 100_000  # sums
T = TypeVar("T")


def is_text(name: str) -> bool:
    """Whether a parameter is a text per image, which a batch takes as a list."""
    return re.fullmatch("negative_prompt(_[2-4])?|prompt_[2-4]", name) is not None


def _check_parameters(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in values.items():
        try:
            check_parameter(name, value)
        except ValueError as error:
            raise KeyFault(name, str(error)) from None
    return values


def check_parameter(name: str, value: JsonValue) -> None:
    """Raises ValueError for what no pipeline call can be given."""
    check_name(name)
    _check_value(name, value)
    _check_json(name, value)


def check_name(name: str) -> None:
    """Raises ValueError for a parameter that the runner sets."""
    if name in SETUP:
        raise ValueError(f"{name} is no argument of the call; write it beside parameters")
    if name in RESERVED or CALLBACKS.fullmatch(name):
        instead = RESERVED.get(name)
        hint = f"; write {instead} instead" if instead else ""
        raise ValueError(f"{name} is set by the runner{hint}")
    if TENSORS.fullmatch(name):
        raise ValueError(f"{name} is set by the runner, from the texts; leave it out")


def _check_value(name: str, value: JsonValue) -> None:
    given = cut(json.dumps(value), MAX_VALUE)
    if is_input(name) and value is not None:
        _check_input(value, f"{name} ")
    if is_text(name) and not isinstance(value, str | None):
        raise ValueError(f"{name} must be one text, in quotes, not {given}")
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if name in COUNTS and value is not None and not is_count:
        raise ValueError(f"{name} must be a whole number, 1 or more, not {given}")
    if name in COUNTS and isinstance(value, int) and value > MAX_COUNT:
        raise ValueError(f"{name} must be {MAX_COUNT} at most, not {given}")
    if any(abs(number) > MAX_FLOAT for number in _numbers(value)):
        raise ValueError(f"{name} must be within ±{MAX_FLOAT:g}, not {given}")


def _check_input(value: JsonValue, name: str = "") -> JsonValue:
    """An input image is a file, or a list of them. Raises ValueError."""
    files = value if isinstance(value, list) else [value]
    if not files or not all(isinstance(file, str) and file.strip() for file in files):
        given = cut(json.dumps(value), MAX_VALUE)
        raise ValueError(f"{name}must be the file of an image, or a list of them, not {given}")
    if any("\0" in file for file in files if isinstance(file, str)):
        raise ValueError(f"{name}must be a file: a NUL byte is in its name")
    return value


def _numbers(value: JsonValue) -> Iterator[int | float]:
    """All numbers in a value."""
    if isinstance(value, int | float):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _numbers(one)


def _check_json(name: str, value: JsonValue) -> None:
    """Fingerprints, journals and metadata hold the parameters as JSON in UTF-8."""
    try:
        json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} is not valid Unicode (a lone surrogate)") from None
    except ValueError:
        raise ValueError(f"{name} has a number that is not finite") from None


def _id(value: Any) -> Any:
    """Numbers are names, too."""
    return str(value) if type(value) is int else value


def _check_meta(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in values.items():
        try:
            _check_json(name, value)
        except ValueError as error:
            raise KeyFault(name, str(error)) from None
    return values


def _check_seeds(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ValueError(f"{twice} is there twice, which makes one picture twice; keep one")
    return seeds


Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Seeds = Annotated[
    list[Seed],
    Field(min_length=1, max_length=MAX_IMAGES),
    AfterValidator(_check_seeds),
]
Variations = Annotated[int, Field(ge=1, le=MAX_IMAGES)]
Parameters = Annotated[dict[str, JsonValue], AfterValidator(_check_parameters)]
Id = Annotated[Text, BeforeValidator(_id)]
FILES_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)
InputImage = Annotated[JsonValue, AfterValidator(_check_input), FILES_SCHEMA]
Scheduler = Annotated[SchedulerSpec, ShortForm("name")] | None
Meta = Annotated[dict[str, JsonValue], AfterValidator(_check_meta)]


class Prompt(NamedTuple):
    """One checked prompt; its parameters override the manifest's, key by key."""

    prompt: str
    seed: int | None = None
    parameters: Mapping[str, Any] = {}
    id: str | None = None  # its author's name for it
    meta: Mapping[str, Any] = {}  # its author's data, carried along
    seeds: tuple[int, ...] = ()  # an image for each


def alone(info: ValidationInfo, value: T, *others: str) -> T:
    """The value of a key that excludes others, as in `seeds` and `variations`. Raises ValueError
    where one of them is given, too."""
    known = {**(info.data.get("parameters") or {}), **info.data}
    for other in others:
        if value is not None and known.get(other) is not None:
            name = f"parameters.{other}" if other == COUNT else other
            raise ValueError(f"excludes {name}; keep one of them")
    return value


class PromptItem(Settings):
    """A prompt as it is written."""

    prompt: Text = Field(description="the text", examples=["a fox in the snow"])
    id: Id | None = Field(
        default=None,
        description="your own name for it; it changes no pixel and goes along into the reports",
        examples=["fox-1"],
    )
    seed: Seed | None = Field(
        default=None,
        description="seed of its first image, in place of the manifest's; its further images count "
        "on from it",
        examples=[7],
    )
    parameters: Parameters = Field(
        default_factory=dict,
        description="its own arguments of the pipeline's call, over the manifest's, key by key",
        examples=[{"width": 512}],
    )
    scheduler: Scheduler = Field(
        default=None,
        description="its own scheduler, in place of the manifest's",
        examples=["EulerDiscreteScheduler"],
    )
    loras: Weights | None = Field(
        default=None,
        description="its own weights of the manifest's LoRAs, by name, over theirs",
        examples=[{"sepia": 0.5}],
    )
    meta: Meta = Field(
        default_factory=dict,
        description="your own data; it changes no pixel and goes along into the reports",
        examples=[{"series": 3}],
    )
    seeds: Seeds | None = Field(
        default=None, description="an image for each of these seeds", examples=[[7, 21]]
    )
    variations: Variations | None = Field(
        default=None, description="so many images, with seeds in a row", examples=[4]
    )

    image: InputImage | None = Field(
        default=None,
        description="its input image, or several: files, by paths that start where the file lies "
        "that names them",
        examples=["photos/fox.png", ["fox.png", "hen.png"]],
    )
    mask_image: InputImage | None = Field(
        default=None,
        description="what to paint anew in its image: white",
        examples=["masks/fox.png"],
    )
    control_image: InputImage | None = Field(
        default=None, description="what guides its ControlNet", examples=["edges/fox.png"]
    )

    @field_validator(*PROMPT_INPUTS)
    @classmethod
    def _input_alone(cls, value: JsonValue, info: ValidationInfo) -> JsonValue:
        if value is not None and info.field_name in (info.data.get("parameters") or {}):
            raise ValueError("is among the parameters, too; keep one")
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_alone(cls, value: list[int] | None, info: ValidationInfo) -> list[int] | None:
        return alone(info, value, "seed", COUNT)

    @field_validator("variations")
    @classmethod
    def _variations_alone(cls, value: int | None, info: ValidationInfo) -> int | None:
        return alone(info, value, "seeds", COUNT)

    def to_prompt(self) -> Prompt:
        own = {COUNT: self.variations, **{name: getattr(self, name) for name in PROMPT_INPUTS}}
        own |= {"scheduler": self.scheduler and self.scheduler.value, "loras": self.loras}
        given = {name: value for name, value in own.items() if value is not None}
        return Prompt(
            self.prompt,
            self.seed,
            {**self.parameters, **given},
            self.id,
            self.meta,
            tuple(self.seeds or ()),
        )


SHORT_PROMPT = ShortForm("prompt")  # `- a cat` is short for `- prompt: a cat`


def repeated(sums: Iterable[int]) -> frozenset[int]:
    """Those that are there more than once. A set of all of them would need ten times the memory."""
    if isinstance(sums, array) and len(sums) >= MANY:
        import numpy as np  # sorts them where they lie; it takes a tenth of a second to load

        numbers = np.sort(np.frombuffer(sums, sums.typecode))
        return frozenset(numbers[1:][numbers[1:] == numbers[:-1]].tolist())
    return frozenset(one for one, other in itertools.pairwise(sorted(sums)) if one == other)


def text_sums(prompt: str, parameters: Mapping[str, Any]) -> list[int]:
    """A checksum of each text: the prompt, and the texts among the parameters."""
    sums = [zlib.crc32(prompt.encode())]
    for name, value in parameters.items():
        if value and is_text(name):
            sums.append(zlib.crc32(value.encode()))
    return sums
