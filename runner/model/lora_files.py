"""A LoRA in a manifest → a file, its revision and what a fingerprint holds of it. No torch."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from runner import demo
from runner.errors import ModelError
from runner.model.hub import ask_hub, cached_file, commit_of
from runner.model.identity import file_digest
from runner.model.spec import ModelSpec
from runner.settings import Settings, Text

__all__ = ["LoraSpec", "fetch", "identities", "local_file", "resolve"]

USUAL = "pytorch_lora_weights.safetensors"  # what diffusers calls it on the hub


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w-]*", text, re.ASCII):
        raise ValueError("must be letters, digits, _ and -, the first a letter")
    return text


class LoraSpec(Settings):
    """A hub ID, a local folder or file, or `demo`."""

    id: Text = Field(
        description="a hub ID; a local .safetensors file or a folder with one, relative to the "
        "manifest; or demo, which has one for the demo model",
        examples=["ostris/watercolor_style_lora_sdxl", "./style.safetensors", "demo"],
    )
    file: Text | None = Field(
        default=None,
        description="the file in the folder or on the hub, where it has several",
        examples=["sepia.safetensors"],
    )
    revision: Text | None = Field(
        default=None,
        description="a branch, tag or commit on the hub; the first run records the commit",
        examples=["75e0b4b"],
    )
    name: Annotated[str, AfterValidator(_name)] | None = Field(
        default=None,
        description="what prompts and sweeps call it; the name of its file if not given",
        examples=["sepia"],
    )
    weight: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=1.0,
        description="its weight for prompts that do not say otherwise; 0: only those that do",
        examples=[0.8],
    )

    @property
    def own_name(self) -> str:
        if self.name is not None:
            return self.name
        stem = Path(self.file or self.id).name.removesuffix(".safetensors")
        return re.sub(r"\W", "_", re.sub(r"^(?=\d)", "_", stem), flags=re.ASCII)

    @property
    def path(self) -> Path | None:
        """Where it lies, a folder or a file; None for the hub."""
        if self.id == "demo":
            return demo.LORA_DIR
        path = Path(self.id)
        return path if path.is_absolute() else None

    @property
    def on_hub(self) -> ModelSpec:
        """For questions to the hub."""
        return ModelSpec(id=self.id, revision=self.revision)


def resolve(spec: LoraSpec) -> str | None:
    """Its revision as a commit; None for a local one. Raises ModelError, OfflineError."""
    return commit_of(spec.on_hub, _file(spec)) if spec.path is None else spec.revision


def local_file(spec: LoraSpec) -> Path | None:
    """The file, or None where it must be downloaded first. Raises ModelError for one that is
    missing, is not safetensors, or is one of several."""
    if spec.path is None:
        return cached_file(spec.on_hub, _file(spec))
    path = spec.path / spec.file if spec.file else spec.path
    if path.is_dir():
        path = _only_one(spec, path)
    if not path.is_file():
        raise ModelError(f"{spec.id}: no LoRA file {path}")
    if path.suffix != ".safetensors":
        raise ModelError(
            f"{path.name}: not safetensors, and pickles can run code; save it as .safetensors"
        )
    return path


def fetch(spec: LoraSpec) -> Path:
    """The file, downloaded where the cache lacks it. Call it in one process per node."""
    found = local_file(spec)
    if found is not None:
        return found
    hub, file = spec.on_hub, _file(spec)
    names = ask_hub(hub, lambda it: it.HfApi().list_repo_files(hub.id, revision=hub.revision))
    if file not in names:
        there = [name for name in names if name.endswith(".safetensors")]
        raise ModelError(f"{spec.id}: no {file}; {_choice(there)}")
    return Path(ask_hub(hub, lambda it: it.hf_hub_download(hub.id, file, revision=hub.revision)))


def identities(loras: Iterable[LoraSpec]) -> dict[str, dict[str, Any]]:
    """What fingerprints hold of each, by its name: on the hub its commit, else its content. Raises
    ModelError."""
    return {lora.own_name: _identity(lora) for lora in loras}


def _identity(spec: LoraSpec) -> dict[str, Any]:
    if spec.path is None:
        return {"id": spec.id, "file": _file(spec), "revision": spec.revision}
    path = local_file(spec)
    return {"contents": file_digest(path) if path else ""}


def _file(spec: LoraSpec) -> str:
    return spec.file or USUAL


def _only_one(spec: LoraSpec, folder: Path) -> Path:
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) != 1:
        raise ModelError(f"{spec.id}: {_choice(found)}")
    return folder / found[0]


def _choice(names: list[str]) -> str:
    if not names:
        return "no .safetensors in it; save the LoRA as one"
    return f"name its file: {', '.join(names[:10])}"
