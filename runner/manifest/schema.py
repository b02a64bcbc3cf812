"""The manifest as a frozen, strict pydantic model. It needs only the file: no torch, no weights."""

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from runner.manifest.local_folder import check_local_folder
from runner.manifest.loras import Loras, merged_weights
from runner.manifest.name_template import parse
from runner.manifest.prompts import (
    COUNT,
    Parameters,
    Scheduler,
    Seed,
    Seeds,
    Variations,
    alone,
)
from runner.manifest.sources.spec import Dataset, File, ListedPrompts, Source, form_of
from runner.manifest.sweep import Sweep
from runner.model.pipeline_class import TASKS
from runner.model.spec import ModelSpec
from runner.settings import Settings, ShortForm, Text
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


CLASS_NAME = re.compile(r"[A-Z]\w*Pipeline\w*", re.ASCII)
# What people write → the task.
ALIASES = {"img2img": "image-to-image", "i2i": "image-to-image", "inpainting": "inpaint"}

DTYPE_SCHEMA = WithJsonSchema({"enum": [*DTYPES, "torch.float16", "torch.bfloat16"]})


def _dtype(value: Any) -> Any:
    name = str(value).lower().removeprefix("torch.")
    if not isinstance(value, str) or name not in DTYPES:
        raise ValueError(f"not a dtype; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _one_seed(value: "SeedSpec") -> "SeedSpec":
    if (value.start is None and value.per is None) == (value.fixed is None):
        raise ValueError("give a number, {fixed: number} or {per: prompt}")
    return value


def _name(text: str) -> str:
    parse(text)
    return text


def _pipeline(name: str) -> str:
    if name not in TASKS and not CLASS_NAME.fullmatch(name):
        close = difflib.get_close_matches(name.lower(), [*TASKS, *ALIASES], n=1, cutoff=0.5)
        meant = ALIASES.get(close[0], close[0]) if close else ""
        hint = f"did you mean {meant}?" if meant else f"use {', '.join(TASKS)} or a class"
        raise ValueError(f"no task, and no name of a pipeline class; {hint}")
    return name


class OutputSpec(Settings):
    dir: Annotated[Text, AfterValidator(check_local_folder)] | None = Field(
        default=None,
        description="the folder, relative to where you start; outputs/NAME if not given. --output "
        "replaces it",
        examples=["outputs/animals"],
    )
    images_per_folder: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="put the images into folders of this many, as in 000012/012345.png; good for "
        "more than 10,000 images. It cannot change once there are images",
        examples=[1000],
    )
    name: Annotated[Text, AfterValidator(_name)] | None = Field(
        default=None,
        description="how images are named, without .png, in place of their index: values in "
        "braces, and folders. It cannot change once there are images",
        examples=["{id}_{variation:02}", "{prompt_index:05}/samples/{variation:04}"],
    )
    png_level: Annotated[int, Field(ge=0, le=9)] = Field(
        default=1,  # against 6: a quarter larger, far faster
        description="compression of the images, 0 to 9; it changes size and time, never a pixel",
        examples=[6],
    )

    @field_validator("name")
    @classmethod
    def _name_alone(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("images_per_folder") is not None:
            raise ValueError("excludes images_per_folder; put the folders into name")
        return value


# `1024x768` (width × height) or `default`, the pipeline's own size → images of one call.
BatchSizes = dict[
    Annotated[str, Field(pattern=r"^([1-9]\d*x[1-9]\d*|default)$")], Annotated[int, Field(ge=1)]
]


class ImageFolders(Settings):
    """Folders of input images, by the parameter that they are for."""

    image: Text | None = Field(default=None, description="a folder of images", examples=["photos"])
    mask_image: Text | None = Field(
        default=None, description="a folder of their masks", examples=["masks"]
    )
    control_image: Text | None = Field(
        default=None, description="a folder of what guides a ControlNet", examples=["edges"]
    )


class SeedSpec(Settings):
    """Image i gets start + i, or every image gets the fixed seed. Per prompt: the seeds come from
    the id or the text of each prompt, `start` is added."""

    start: Seed | None = Field(
        default=None, description="image number i gets this seed + i", examples=[42]
    )
    fixed: Seed | None = Field(
        default=None, description="every image gets this seed", examples=[42]
    )
    per: Literal["prompt"] | None = Field(
        default=None,
        description="the seeds of a prompt come from its id or text, and start is added, so that "
        "it keeps its images wherever it stands in the list",
        examples=["prompt"],
    )


def _batch_form(value: Any) -> str:
    return "<auto>" if value == "auto" else "<number>"


def _prompts_form(value: Any) -> str:
    if not isinstance(value, dict | Source):
        return "<prompts>"
    return "<dataset>" if form_of(value) == "<dataset>" else "<file>"


class Manifest(Settings):
    model: Annotated[ModelSpec, ShortForm("id")] = Field(
        description="the model: a hub ID, a local folder, or demo",
        examples=["Qwen/Qwen-Image", {"id": "Qwen/Qwen-Image", "revision": "75e0b4b"}],
    )
    prompts: Annotated[
        Annotated[ListedPrompts, Tag("<prompts>"), Field(min_length=1, strict=False)]
        | Annotated[File, Tag("<file>")]
        | Annotated[Dataset, Tag("<dataset>")],
        Discriminator(_prompts_form),
    ] = Field(
        description="a list of prompts, a file or data set of them, or a list of all these",
        examples=[["a dog", {"prompt": "a cat", "seed": 7}], {"file": "prompts.csv"}],
    )
    pipeline: Annotated[Text, AfterValidator(_pipeline)] | None = Field(
        default=None,
        description="what is made with the model, where it serves several tasks: text-to-image, "
        "image-to-image, inpaint, or a pipeline class of diffusers; the model's own if not given",
        examples=["image-to-image", "FluxFillPipeline"],
    )
    images: Annotated[ImageFolders, ShortForm("image")] | None = Field(
        default=None,
        description="a folder whose images are paired with prompts: each has the name of its "
        "prompt's id",
        examples=["photos", {"image": "photos", "mask_image": "masks"}],
    )
    inputs: Text | None = Field(
        default=None,
        description="the folder where the paths of input images start, relative to the manifest; "
        "the folder of the file that names them if not given",
        examples=["photos"],
    )
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], BeforeValidator(_dtype), DTYPE_SCHEMA
    ] = Field(
        default="float32",
        description="numbers of the model: float32, float16 (needs a GPU) or bfloat16; fp32, fp16, "
        "half and bf16 mean the same",
        examples=["bfloat16"],
    )
    parameters: Parameters = Field(
        default_factory=dict,
        description="arguments of the pipeline's call, by their names in diffusers",
        examples=[{"height": 1024, "width": 1024, "num_inference_steps": 30}],
    )
    scheduler: Scheduler = Field(
        default=None,
        description="a scheduler of diffusers in place of the model's own, with its options",
        examples=[
            "DDIMScheduler",
            {"name": "DPMSolverMultistepScheduler", "use_karras_sigmas": True},
        ],
    )
    loras: Loras = Field(
        default_factory=list,
        description="LoRAs that are loaded beside the model, with their weights",
        examples=[
            ["./style.safetensors"],
            [{"id": "demo", "file": "sepia.safetensors", "weight": 0.8}],
        ],
    )
    seeds: Seeds | None = Field(
        default=None,
        description="each prompt is made once with each of these seeds",
        examples=[[1, 2, 3]],
    )
    variations: Variations | None = Field(
        default=None, description="images of each prompt, with seeds in a row", examples=[4]
    )
    sweep: Sweep | None = Field(
        default=None,
        description="values to try, in all combinations (product) or in pairs (zip)",
        examples=[{"product": {"guidance_scale": [2.5, 3.5], "animal": ["cat", "dog"]}}],
    )
    seed: Annotated[SeedSpec, ShortForm("start"), AfterValidator(_one_seed)] | None = Field(
        default=None,
        description="image number i gets seed + i; {fixed: 42} gives every image the same; with "
        "{per: prompt} a prompt keeps its seeds wherever it stands. Drawn per prompt and recorded "
        "by the first run if not given",
        examples=[42, {"per": "prompt", "start": 42}],
    )
    output: Annotated[OutputSpec, ShortForm("dir")] = Field(
        default=OutputSpec(),
        description="the output folder; outputs/NAME if not given, with the manifest's file name "
        "without .yaml",
        examples=["outputs/animals", {"dir": "outputs/animals", "images_per_folder": 1000}],
    )
    strategy: Annotated[Strategy, ShortForm("kind")] = Field(
        default=DataParallel(),
        description="how GPUs share the work",
        examples=["auto", {"kind": "context_parallel", "ulysses_degree": 2}],
    )
    batch_size: Annotated[
        Annotated[int, Tag("<number>"), Field(ge=1)] | Annotated[Literal["auto"], Tag("<auto>")],
        Discriminator(_batch_form),
    ] = Field(
        default=1,
        description="images per call of the pipeline; auto tries what is fastest",
        examples=[4, "auto"],
    )
    compile: bool = Field(
        default=False,
        description="compile the transformer's repeated blocks",
        examples=[True],
    )
    max_failures: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="end the run after this many failed images", examples=[10]
    )
    stop_grace_s: Annotated[float, Field(gt=0)] = Field(
        default=20.0,
        description="seconds for the current image after a request to stop",
        examples=[60],
    )
    on_out_of_memory: Literal["fail", "tile", "offload"] = Field(
        default="fail",
        description="what to try when one image alone runs out of memory",
        examples=["tile"],
    )
    on_flagged: Literal["keep", "skip", "fail"] = Field(
        default="keep",
        description="what to do with a black image, or one that a safety checker flagged",
        examples=["skip"],
    )
    report: bool = Field(
        default=False,
        description="write report.html, a page that shows all images, at the end of each run",
        examples=[True],
    )
    batch_sizes: BatchSizes = Field(
        default_factory=dict,
        description="written by the runner: what batch_size auto found, by size",
        examples=[{"1024x1024": 4}],
    )
    versions: dict[str, str] = Field(
        default_factory=dict,
        description="written by the runner and never read: versions of the packages",
        examples=[{"torch": "2.13.0"}],
    )

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
        if value is not None and not value.axes:
            raise ValueError("has no axis; write one under product or zip, or remove sweep")
        return value

    @property
    def defaults(self) -> dict[str, Any]:
        """What a prompt has where it does not say otherwise: the parameters, and what sets the
        pipeline up."""
        weights = merged_weights(self.loras)
        setup = {"scheduler": self.scheduler and self.scheduler.value, "loras": weights}
        return {**self.parameters, **{name: value for name, value in setup.items() if value}}

    @property
    def is_plain(self) -> bool:
        """Whether the pipeline is called as plain diffusers calls it: on one device, uncompiled."""
        return self.strategy.is_plain and not self.compile

    @property
    def has_open_batches(self) -> bool:
        """Whether batch sizes are still to be found."""
        return self.batch_size == "auto" and not self.batch_sizes

    @property
    def largest_batch(self) -> int:
        """The most images of one pipeline call; 1 while `auto` is open."""
        if self.batch_size == "auto":
            return max(self.batch_sizes.values(), default=1)
        return self.batch_size
