"""What a model's configs tell about a manifest, before weights load and without importing torch."""

import ast
import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import ModelError
from runner.manifest import Manifest, ModelSpec
from runner.model import index_of
from runner.plan import Plan
from runner.settings import nearest, place_of
from runner.strategies.facts import read_config

__all__ = ["CallSignature", "call_signature", "check"]


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The arguments that a pipeline's call takes."""

    names: tuple[str, ...]
    takes_any: bool  # it has **kwargs


def check(plan: Plan, folder: Path) -> None:
    """Raises ModelError for a pipeline that is unknown or takes no prompt, parameters that its call
    does not take, sizes that it would round."""
    spec = plan.manifest.model
    index = index_of(folder, spec.id)
    if isinstance(index["_class_name"], str):  # else code of the model's own, allowed by its user
        _check_parameters(plan, spec, index["_class_name"])
    multiple = _size_multiple(folder)
    for size, place in plan.sizes.items():
        for name, value in zip(("height", "width"), size, strict=True):
            if value is not None and value % multiple:
                low = value // multiple * multiple
                valid = " or ".join(str(v) for v in (low, low + multiple) if v)
                raise ModelError(
                    f"prompts[{place}]: {name} {value} is no multiple of {multiple}, which "
                    f"{spec.id} needs; use {valid}"
                )


def _check_parameters(plan: Plan, spec: ModelSpec, class_name: str) -> None:
    signature = call_signature(class_name)
    if signature is None:
        version = importlib.metadata.version("diffusers")
        raise ModelError(f"{spec.id}: diffusers {version} has no {class_name}")
    if "prompt" not in signature.names or "generator" not in signature.names:
        raise ModelError(f"{spec.id}: {class_name} makes no images from prompts")
    known = {name: name for name in signature.names if name not in ("self", "prompt")}
    unknown = [
        f"prompts[{place}]: {class_name} takes no {name}{_hint(name, known)}"
        for name, place in plan.names.items()
        if name not in known and not signature.takes_any
    ]
    if unknown:
        raise ModelError("\n".join(unknown))


def _hint(name: str, known: Mapping[str, str]) -> str:
    place = place_of(name, Manifest)
    is_elsewhere = place and not place.endswith(f"parameters.{name}")
    return place if is_elsewhere else nearest(name, known)


@functools.cache
def call_signature(class_name: str) -> CallSignature | None:
    """The signature of a diffusers pipeline's `__call__`, read from its source: importing the class
    takes seconds, and half a gigabyte."""
    found = importlib.util.find_spec("diffusers")
    home = Path(found.origin).parent / "pipelines" if found and found.origin else Path()
    wanted = f"class {class_name}(".encode()
    for path in sorted(home.rglob("*.py")):
        data = path.read_bytes()
        if wanted in data:
            return _signature_in(ast.parse(data), class_name)
    return None


def _signature_in(tree: ast.Module, class_name: str) -> CallSignature | None:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != class_name:
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__call__":
                given = member.args
                names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                return CallSignature(tuple(names), given.kwarg is not None)
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        return next(filter(None, map(call_signature, bases)), None)
    return None


def _size_multiple(folder: Path) -> int:
    """What height and width must be multiples of: the VAE's factor times the transformer's patch
    (FLUX and Qwen-Image pack 2×2 latents before it, and so have 4 times the VAE's channels)."""
    vae = read_config(folder / "vae" / "config.json")
    blocks = vae.get("block_out_channels") or vae.get("temperal_downsample")
    if not blocks:
        return 1
    factor = 2 ** (len(blocks) - ("block_out_channels" in vae))
    transformer = read_config(folder / "transformer" / "config.json")
    latents = vae.get("latent_channels") or vae.get("z_dim")
    if latents and transformer.get("in_channels") == 4 * latents:
        return int(factor * 2)
    patch = transformer.get("patch_size")
    return int(factor * (patch if isinstance(patch, int) else 1))
