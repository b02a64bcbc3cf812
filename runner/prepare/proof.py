"""Whether a run first compares an image with plain diffusers: where no test proves the pipeline."""

import contextlib
import hashlib

from runner.folder.files import replace
from runner.folder.paths import OutputFolder
from runner.manifest.schema import Manifest
from runner.model.configs import ModelConfigs
from runner.model.proven import is_proven
from runner.strategies import StrategyBase

__all__ = ["compares_first_image", "note_comparison", "unproven"]


# Keys of a manifest that an image depends on besides its prompt, and what it is made with.
PIXELS = ("model", "pipeline", "dtype", "strategy", "compile", "versions")


def unproven(strategy: StrategyBase, configs: ModelConfigs) -> str:
    """A remark, or "" where a test proves this pipeline right with this strategy."""
    name = configs.index["_class_name"]
    if is_proven(name, strategy.proven_as):
        return ""
    shown = name if isinstance(name, str) else "this pipeline"
    return (
        f"no test proves {shown} right with {strategy.proven_as}: a run first compares one image "
        f"with that of plain diffusers, and is refused where they differ"
    )


def compares_first_image(
    manifest: Manifest, configs: ModelConfigs, folder: OutputFolder, *, is_asked: bool
) -> bool:
    """Whether this launch compares. With --self-check (`is_asked`) there is nothing to compare
    where a proven pipeline is called as plain diffusers calls it."""
    if unproven(manifest.strategy, configs):
        return not _is_noted(folder, manifest)
    return is_asked and not manifest.is_plain


def note_comparison(folder: OutputFolder, manifest: Manifest, launch: str) -> None:
    """The first image was right: later launches on this folder need not compare again."""
    replace(folder.compared, (_name_of(manifest).encode(),), launch)


def _is_noted(folder: OutputFolder, manifest: Manifest) -> bool:
    with contextlib.suppress(OSError):
        return folder.compared.read_bytes()[:64].decode(errors="replace") == _name_of(manifest)
    return False


def _name_of(manifest: Manifest) -> str:
    """Of what an image depends on besides its prompt: a later launch may change any of it."""
    what = manifest.model_dump_json(include={*PIXELS})
    return hashlib.sha256(what.encode()).hexdigest()[:32]
