"""The manifest: YAML → a frozen, strict model. Knows the file alone: no torch, no weights."""

import importlib.metadata
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
)

import runner
from runner import demo
from runner.errors import ManifestError, Problem
from runner.prompts import (
    FilePrompts,
    InlinePrompts,
    Parameters,
    Prompt,
    PromptFile,
    Seed,
    Text,
)
from runner.settings import Settings, explain
from runner.strategies import DataParallel, Strategy
from runner.yaml_tree import Node, document, set_value

__all__ = [
    "Loaded",
    "Manifest",
    "ModelSpec",
    "OutputSpec",
    "Resolved",
    "SeedSpec",
    "decide",
    "dump",
    "fill",
    "load",
    "parse",
]

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
FIRST_SEEDS = 2**32  # a seed drawn for a job that has none: short enough to type


def _lift(key: str) -> BeforeValidator:
    """The short form of a mapping is the value of its main key."""
    return BeforeValidator(
        lambda value: value if isinstance(value, dict | Settings) else {key: value}
    )


def _dtype(value: Any) -> Any:
    name = str(value).lower().removeprefix("torch.")
    if not isinstance(value, str) or name not in DTYPES:
        raise ValueError(f"not a dtype; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _one_seed(value: "SeedSpec") -> "SeedSpec":
    if (value.start is None) == (value.fixed is None):
        raise ValueError("give a number, or {fixed: number}")
    return value


class ModelSpec(Settings):
    """A hub ID, a local folder, or `demo`."""

    id: Text
    revision: Text | None = None
    variant: Text | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False


class OutputSpec(Settings):
    dir: Text | None = None
    images_per_folder: Annotated[int, Field(ge=1)] | None = None
    png_level: Annotated[int, Field(ge=0, le=9)] = 1  # a quarter larger than 6, far faster


# `1024x768` (width × height), or `default`: the pipeline's own → images of one call.
BatchSizes = dict[
    Annotated[str, Field(pattern=r"^([1-9]\d*x[1-9]\d*|default)$")], Annotated[int, Field(ge=1)]
]


class SeedSpec(Settings):
    """Image i gets start + i, or every image the fixed seed."""

    start: Seed | None = None
    fixed: Seed | None = None


def _batch_form(value: Any) -> str:
    return "<auto>" if value == "auto" else "<number>"


def _prompts_form(value: Any) -> str:
    return "<file>" if isinstance(value, dict | PromptFile) else "<prompt>"


class Manifest(Settings):
    model: Annotated[ModelSpec, _lift("id")]
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], BeforeValidator(_dtype)] = "float32"
    strategy: Annotated[Strategy, _lift("kind")] = DataParallel()
    output: Annotated[OutputSpec, _lift("dir")] = OutputSpec()
    seed: Annotated[SeedSpec, _lift("start"), AfterValidator(_one_seed)] | None = None
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
            raise ValueError("what batch_size: auto found; use it with that")
        return value

    @property
    def largest_batch(self) -> int:
        """The most images of one pipeline call; 1 while `auto` is open."""
        if self.batch_size == "auto":
            return max(self.batch_sizes.values(), default=1)
        return self.batch_size


class Resolved(Settings):
    """What rank 0 fills in where the manifest leaves it open; the same for all ranks."""

    seed: Annotated[SeedSpec, _lift("start")]
    revision: Text | None
    versions: dict[str, str]
    strategy: Strategy
    batch_sizes: BatchSizes = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A manifest with its prompts, which may stay in their file."""

    manifest: Manifest
    prompts: Sequence[Prompt]
    path: Path
    root: Node  # of the file, for the places of later problems


def load(path: Path, sets: Sequence[str] = ()) -> Loaded:
    """Read a manifest and its prompt file; `sets` are --set arguments, which go over it.

    Raises ManifestError with every problem of the manifest, then of the prompt file.
    """
    manifest, root = parse(path, sets)
    local = _path(root, ("model", "id"), path.parent, manifest.model.id)
    if manifest.model.id != "demo" and (_is_path(manifest.model.id) or local.is_dir()):
        spec = manifest.model.model_copy(update={"id": str(local.resolve())})
        manifest = manifest.model_copy(update={"model": spec})
    if not isinstance(manifest.prompts, PromptFile):
        good = tuple(item.found_good() for item in manifest.prompts)
        return Loaded(manifest, good, path, root)
    file = _path(root, ("prompts", "file"), path.parent, manifest.prompts.file)
    place = root.walk(("prompts", "file"))[0].place
    if not file.is_file():
        raise ManifestError([Problem(place, f"no prompt file {file.resolve()}")])
    # As run, a manifest is found in another folder: its prompt file by the full path.
    manifest = manifest.model_copy(update={"prompts": PromptFile(file=str(file.resolve()))})
    return Loaded(manifest, FilePrompts(file, str(file)), path, root)


def _path(root: Node, key: tuple[str, ...], folder: Path, name: str) -> Path:
    """An input path, relative to the manifest. Raises ManifestError for what no system takes."""
    try:
        path = folder / Path(name).expanduser()
        path.resolve().is_file()
        if "\0" in name:
            raise ValueError("a NUL byte")
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{'.'.join(key)}: {name[:60]!r}: {reason}"
        raise ManifestError([Problem(root.walk(key)[0].place, message)]) from None
    return path


def _is_path(model_id: str) -> bool:
    return model_id.startswith(("/", "./", "../", "~")) or model_id in (".", "..")


def parse(path: Path, sets: Sequence[str] = ()) -> tuple[Manifest, Node]:
    """The manifest alone, and its tree for the places of later problems."""
    root, problems = document(_read(path), str(path))
    for assignment in sets:
        set_value(root, assignment)
    if not isinstance(root.value, dict):
        raise ManifestError([Problem(root.place, "a manifest is a mapping: model: …, prompts: …")])
    try:
        manifest = Manifest.model_validate(root.plain())
    except ValidationError as error:
        for fault in error.errors():
            if fault["type"] == "too_short" and fault["input"]:
                continue  # pydantic counts the good ones: each bad one is told
            node, found = root.walk(fault["loc"])
            problems.append(Problem(node.place, explain(Manifest, fault, found, node.text)))
    if problems:
        raise ManifestError(sorted(dict.fromkeys(problems), key=_by_line))
    return manifest, root


def _by_line(problem: Problem) -> tuple[str, int]:
    name, _, line = problem.place.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (problem.place, 0)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ManifestError([Problem(str(path), error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        message = f"not UTF-8 (byte {error.object[error.start]:#04x}); save the file as UTF-8"
        raise ManifestError([Problem(f"{path}:{line}", message)]) from None


def decide(manifest: Manifest, recorded: Manifest | None) -> Resolved:
    """What the manifest leaves open, first from the run that began the folder. A revision that is
    open still is for `model.resolve`."""
    seed, revision, sizes = manifest.seed, manifest.model.revision, manifest.batch_sizes
    if recorded is not None:
        seed = seed or recorded.seed
        if recorded.model.id == manifest.model.id:
            revision = revision or recorded.model.revision
            sizes = sizes or recorded.batch_sizes
    return Resolved(
        seed=seed or SeedSpec(start=secrets.randbelow(FIRST_SEEDS)),
        revision=revision,
        versions=versions(),
        strategy=manifest.strategy,
        batch_sizes=sizes if manifest.batch_size == "auto" else {},
    )


def fill(manifest: Manifest, resolved: Resolved) -> Manifest:
    """The manifest with nothing open."""
    spec = manifest.model
    parameters = manifest.parameters
    if spec.id == "demo":
        parameters = {**demo.PARAMETERS, **parameters}
    return manifest.model_copy(
        update={
            "seed": resolved.seed,
            "model": spec.model_copy(update={"revision": resolved.revision}),
            "parameters": parameters,
            "versions": resolved.versions,
            "strategy": resolved.strategy,
            "batch_sizes": resolved.batch_sizes,
        }
    )


def versions() -> dict[str, str]:
    """The installed packages that make the pixels."""
    packages = ("torch", "diffusers", "transformers", "accelerate", "safetensors", "pillow")
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {"runner": runner.__version__, **installed}


def dump(manifest: Manifest) -> str:
    """A resolved manifest as YAML that `load` reads again to the same."""
    values = manifest.model_dump(exclude_none=True, exclude_defaults=True)
    values["strategy"] = manifest.strategy.model_dump(exclude_none=True)
    values["dtype"] = manifest.dtype
    values["batch_size"] = manifest.batch_size
    prompts = values.pop("prompts")
    if not isinstance(prompts, dict):
        prompts = [item["prompt"] if len(item) == 1 else item for item in prompts]
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(
        {**values, "prompts": prompts},
        Dumper=dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
    )
