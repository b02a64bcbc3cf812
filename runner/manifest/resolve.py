"""Fill in what a manifest leaves open: seed, revision, strategy, batch sizes, versions."""

import secrets
from typing import Annotated, Any

import yaml
from pydantic import Field

import runner
from runner import demo
from runner.manifest.schema import BatchSizes, Manifest, SeedSpec
from runner.manifest.yaml_tree import EXPONENT
from runner.settings import Settings, ShortForm, Text
from runner.strategies import Strategy

__all__ = ["Resolved", "decide", "dump", "fill", "to_yaml", "versions"]


FIRST_SEEDS = 2**32  # a seed is drawn below this, so that it is short enough to type


class Resolved(Settings):
    """What rank 0 fills in for all ranks."""

    seed: Annotated[SeedSpec, ShortForm("start")]
    revision: Text | None
    versions: dict[str, str] = Field(default_factory=dict)
    strategy: Strategy
    lora_revisions: dict[str, Text | None] = Field(default_factory=dict)  # by name
    batch_sizes: BatchSizes = Field(default_factory=dict)


def decide(manifest: Manifest, recorded: Manifest | None) -> Resolved:
    """What the manifest leaves open: as the run that began the folder recorded it, or chosen here.
    A revision may stay open, for `model.files.resolve`, and versions are open."""
    seed, revision, sizes = manifest.seed, manifest.model.revision, manifest.batch_sizes
    if recorded is not None:
        seed = seed or recorded.seed
        if recorded.model.id == manifest.model.id:
            revision = revision or recorded.model.revision
            sizes = sizes or recorded.batch_sizes
    before = (
        {(lora.own_name, lora.id): lora.revision for lora in recorded.loras} if recorded else {}
    )
    return Resolved(
        # Nobody chose how seeds are spread, so a list may grow anywhere and keep its images.
        seed=seed or SeedSpec(per="prompt", start=secrets.randbelow(FIRST_SEEDS)),
        revision=revision,
        strategy=manifest.strategy,
        lora_revisions={
            lora.own_name: lora.revision or before.get((lora.own_name, lora.id))
            for lora in manifest.loras
        },
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
            "loras": [
                lora.model_copy(update={"revision": resolved.lora_revisions.get(lora.own_name)})
                for lora in manifest.loras
            ],
            "versions": resolved.versions,
            "strategy": resolved.strategy,
            "batch_sizes": resolved.batch_sizes,
        }
    )


def versions() -> dict[str, str]:
    """Versions of the runner and of the packages that the pixels may depend on."""
    import importlib.metadata

    packages = ("torch", "diffusers", "transformers", "accelerate", "safetensors", "pillow")
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {"runner": runner.__version__, **installed}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Puts a text such as "1e1" in quotes: among parameters it is read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, [*"-+0123456789"])


def dump(manifest: Manifest) -> str:
    """A resolved manifest as YAML, from which `load` reads an equal one."""
    values = manifest.model_dump(exclude_none=True, exclude_defaults=True)
    values["strategy"] = manifest.strategy.model_dump(exclude_none=True)
    values["dtype"] = manifest.dtype
    values["batch_size"] = manifest.batch_size
    prompts = values.pop("prompts")
    if not isinstance(prompts, dict):
        prompts = [item["prompt"] if len(item) == 1 else item for item in prompts]
    return to_yaml({**values, "prompts": prompts})


def to_yaml(values: dict[str, Any]) -> str:
    """Values as YAML, from which the runner's reader reads equal ones."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000))
