"""The manifest as a frozen, strict pydantic model. It needs only the file: no torch, no weights."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)

from runner.manifest.local_folder import check_local_folder
from runner.manifest.prompts import (
    COUNT,
    InlinePrompts,
    Parameters,
    PromptFile,
    Seed,
    Seeds,
    Variations,
    alone,
)
from runner.manifest.sweep import Sweep
from runner.model.spec import ModelSpec
from runner.settings import Settings, Text
from runner.strategies import DataParallel, Strategy

__all__ = [
    "Manifest",
    "OutputSpec",
    "SeedSpec",
]

# What people write → the dtype.
DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}


def lift(key: str) -> BeforeValidator:
    """Accept a short form: the value of a mapping's main key in place of the mapping."""
    return BeforeValidator(
        lambda value: value if isinstance(value, dict | Settings) else {key: value}
    )


def _dtype(value: Any) -> Any:
    name = str(value).lower().removeprefix("torch.")
    if not isinstance(value, str) or name not in DTYPES:
        raise ValueError(f"not a dtype; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _one_seed(value: "SeedSpec") -> "SeedSpec":
    if (value.start is None and value.per is None) == (value.fixed is None):
        raise ValueError("give a number, {fixed: number} or {per: prompt}")
    return value


class OutputSpec(Settings):
    dir: Annotated[Text, AfterValidator(check_local_folder)] | None = None
    images_per_folder: Annotated[int, Field(ge=1)] | None = None
    png_level: Annotated[int, Field(ge=0, le=9)] = 1  # against 6: a quarter larger, far faster


# `1024x768` (width × height) or `default`, the pipeline's own size → images of one call.
BatchSizes = dict[
    Annotated[str, Field(pattern=r"^([1-9]\d*x[1-9]\d*|default)$")], Annotated[int, Field(ge=1)]
]


class SeedSpec(Settings):
    """Image i gets start + i, or every image gets the fixed seed. Per prompt: the seeds come from
    the id or the text of each prompt, `start` is added."""

    start: Seed | None = None
    fixed: Seed | None = None
    per: Literal["prompt"] | None = None


def _batch_form(value: Any) -> str:
    return "<auto>" if value == "auto" else "<number>"


def _prompts_form(value: Any) -> str:
    return "<file>" if isinstance(value, dict | PromptFile) else "<prompt>"


class Manifest(Settings):
    model: Annotated[ModelSpec, lift("id")]
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], BeforeValidator(_dtype)] = "float32"
    strategy: Annotated[Strategy, lift("kind")] = DataParallel()
    output: Annotated[OutputSpec, lift("dir")] = OutputSpec()
    seed: Annotated[SeedSpec, lift("start"), AfterValidator(_one_seed)] | None = None
    batch_size: Annotated[
        Annotated[int, Tag("<number>"), Field(ge=1)] | Annotated[Literal["auto"], Tag("<auto>")],
        Discriminator(_batch_form),
    ] = 1
    batch_sizes: BatchSizes = Field(default_factory=dict)  # as run: what `auto` found, by size
    compile: bool = False
    max_failures: Annotated[int, Field(ge=1)] | None = None
    stop_grace_s: Annotated[float, Field(gt=0)] = 20.0
    on_out_of_memory: Literal["fail", "tile", "offload"] = "fail"
    on_flagged: Literal["keep", "skip", "fail"] = "keep"
    parameters: Parameters = Field(default_factory=dict)
    seeds: Seeds | None = None
    variations: Variations | None = None
    sweep: Sweep | None = None
    prompts: Annotated[
        Annotated[InlinePrompts, Tag("<prompt>"), Field(min_length=1, strict=False)]
        | Annotated[PromptFile, Tag("<file>")],
        Discriminator(_prompts_form),
    ]
    versions: dict[str, str] = Field(default_factory=dict)  # as run: recorded, never read

    @field_validator("batch_sizes")
    @classmethod
    def _only_with_auto(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        if value and info.data.get("batch_size", "auto") != "auto":
            raise ValueError("belongs to batch_size: auto; remove it, or set batch_size: auto")
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_alone(cls, value: list[int] | None, info: ValidationInfo) -> list[int] | None:
        return alone(info, value, COUNT)

    @field_validator("variations")
    @classmethod
    def _variations_alone(cls, value: int | None, info: ValidationInfo) -> int | None:
        return alone(info, value, "seeds", COUNT)

    @field_validator("sweep")
    @classmethod
    def _one_source_of_seeds(cls, value: Sweep | None, info: ValidationInfo) -> Sweep | None:
        if value is not None and "seed" in value.axes and info.data.get("seeds"):
            raise ValueError("seed is an axis, and there are seeds; keep one")
        return value

    @property
    def largest_batch(self) -> int:
        """The most images of one pipeline call; 1 while `auto` is open."""
        if self.batch_size == "auto":
            return max(self.batch_sizes.values(), default=1)
        return self.batch_size
