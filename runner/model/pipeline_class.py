"""Which pipeline class makes a manifest's images: the model's own, or the one that `pipeline` says.

diffusers' table of classes of one model for several tasks is read from its source.
"""

import ast
import difflib
import functools
import itertools
from typing import Any

from runner.errors import ModelError
from runner.model.requirements import exports
from runner.model.source import home, installed, tree_of

__all__ = ["TASKS", "class_for_task", "pipeline_class_of"]

# A task, as `pipeline` names it → diffusers' table of it, and what its class names say.
TASKS = {
    "text-to-image": ("AUTO_TEXT2IMAGE_PIPELINES_MAPPING", ""),
    "image-to-image": ("AUTO_IMAGE2IMAGE_PIPELINES_MAPPING", "Img2Img"),
    "inpaint": ("AUTO_INPAINT_PIPELINES_MAPPING", "Inpaint"),
}


def pipeline_class_of(
    own: Any, asked: str | None, shown: str, *, has_controlnet: bool = False
) -> Any:
    """The class for a model whose own is `own` (a list for code of the model's own); `asked` is a
    task or a class. `has_controlnet`: the manifest gives it a ControlNet. Raises ModelError for a
    class that diffusers does not have, and for a task that the model has no class for."""
    if asked is None and has_controlnet and "ControlNet" not in own:
        asked = "text-to-image"
    if asked is None or own == asked:
        return own
    if not isinstance(own, str):
        raise ModelError(f"pipeline: {asked}: {shown} has a pipeline of its own; leave it out")
    if asked not in TASKS:
        if not exports(asked):
            raise ModelError(f"pipeline: {asked}: {_unknown(asked)}")
        return asked
    found = class_for_task(own, asked, has_controlnet=has_controlnet)
    if not found or (has_controlnet and "ControlNet" not in found):
        if has_controlnet:
            raise ModelError(
                f"model.controlnet: diffusers has no class of {asked} for {own} with it"
            )
        known = [task for task in TASKS if class_for_task(own, task)]
        others = f"; known are {', '.join(known)}" if known else ""
        raise ModelError(
            f"pipeline: {asked}: diffusers has no such class for {shown}, whose own is {own}"
            f"{others}; name the class, as in pipeline: {own}"
        )
    return found


def class_for_task(own: str, task: str, *, has_controlnet: bool = False) -> str:
    """As diffusers' AutoPipelineFor… choose it; "" where they find none."""
    tables = _tables()
    name, part = TASKS[task]
    ending = "Pipeline"
    if part and own.endswith(f"{part}Pipeline"):
        ending = f"{part}Pipeline"
    elif own.endswith("ControlPipeline"):
        ending = "ControlPipeline"
    stem = own.removesuffix(ending)
    if has_controlnet:
        own = f"{stem}ControlNet{ending}"
    if ending == "ControlPipeline" and part:
        own = f"{stem}Control{part}Pipeline"
    pairs = itertools.chain.from_iterable(table.items() for table in tables.values())
    family = next((key for key, cls in pairs if cls == own), "")
    return tables[name].get(family, "")


@functools.cache
def _tables() -> dict[str, dict[str, str]]:
    """Table → family of models → class."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree_of(home() / "pipelines" / "auto_pipeline.py")):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(_, [ast.List(pairs)])) if "MAPPING" in name:
                found[name] = dict(filter(None, map(_pair, pairs)))
            case ast.Assign(
                [ast.Subscript(ast.Name(name), ast.Constant(str(family)))], ast.Name(cls)
            ) if "MAPPING" in name:
                found.setdefault(name, {})[family] = cls
    return found


def _pair(node: ast.expr) -> tuple[str, str] | None:
    match node:
        case ast.Tuple([ast.Constant(str(family)), ast.Name(cls)]):
            return family, cls
    return None


def _unknown(asked: str) -> str:
    close = difflib.get_close_matches(asked, [*TASKS, *_classes()], n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else f"; use {', '.join(TASKS)} or a class"
    return f"diffusers {installed()} has no such pipeline{hint}"


def _classes() -> set[str]:
    return {cls for table in _tables().values() for cls in table.values()}
