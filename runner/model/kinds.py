"""The kind of a pipeline, by its source: what it needs besides a text, and what it makes."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.model.input_names import is_input
from runner.model.signature import PipelineCall
from runner.model.source import nodes_of

__all__ = ["Kind", "kind_of", "needed_inputs", "needed_parameters", "product"]

# Arguments that are pictures. Those of adapters come with a model that a manifest cannot name.
PICTURE = re.compile(r"(.*_)?(image|images|img|mask|video|frames|controls)(_.*)?")
NO_PICTURE = re.compile(
    r".*(prompt|latents|embeds|attention|adapter|token|grid|noise_scale|keep).*"
)

# Where the source reads as if the pictures could be left out, but they cannot.
NEEDED = {
    "HunyuanImageRefinerPipeline": ["image"],
    "JoyImageEditPlusPipeline": ["images"],
    "LongCatImageEditPipeline": ["image"],
    "QwenImageEditPipeline": ["image"],
    "QwenImageEditPlusPipeline": ["image"],
    "QwenImageLayeredPipeline": ["image"],
    "StableDiffusionPix2PixZeroPipeline": ["source_embeds", "target_embeds"],
    "VersatileDiffusionDualGuidedPipeline": ["image"],  # its annotation says text
}
# The other way round: the pictures are handed on to where they can be left out.
NOT_NEEDED = ("BriaFibo2Pipeline", "GlmImagePipeline", "StableCascadeCombinedPipeline")
# Arguments that have a default which the call does not take.
NEEDED_PARAMETERS = {
    "BriaFiboEditPipeline": ["height", "width"],
    "StableDiffusionGLIGENPipeline": ["gligen_phrases", "gligen_boxes"],
}

# What the names in a pipeline's `return …Output(name=…)` mean, the first that fits.
PRODUCTS = {
    "videos": r"frames|video|.*TextToVideo.*",
    "sound": r"audios?|.*Audio.*",
    "3-D shapes": r".*ShapE.*",
    "pictures with their depth": r"depth",
    "an image's embedding for another pipeline, no images": r"(image|prompt)_embed.*|.*Prior.*",
    "texts": r"sequences|.*Gemma.*",
    "images in a form that is not read yet": r"image",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a pipeline's call takes and makes."""

    takes: tuple[str, ...]  # input images, needed or not
    needs: tuple[str, ...]  # input images that each prompt must have
    lacks: tuple[str, ...]  # what it needs and a manifest cannot give
    returns: str  # "images", or another product in the words of PRODUCTS


def kind_of(call: PipelineCall) -> Kind:
    needed, made = needed_inputs(call), product(call)
    return Kind(
        takes=tuple(name for name in call.arguments if is_input(name)),
        needs=tuple(name for name in needed if is_input(name)),
        lacks=tuple(name for name in needed if not is_input(name)),
        returns=made or "images",
    )


def needed_inputs(call: PipelineCall) -> list[str]:
    """The arguments without which the call makes nothing, and which are no plain values: without a
    default, or pictures that it never compares with None."""
    required = [name for name in call.required if name != "prompt"]
    pictures = [] if call.name in NOT_NEEDED else _pictures(call)
    names = [name for name in (*required, *pictures) if not call.can_be_written(name)]
    return [*dict.fromkeys([*names, *NEEDED.get(call.name, ())])]


def needed_parameters(call: PipelineCall) -> list[str]:
    """The parameters that each prompt must have."""
    required = [name for name in call.required if call.can_be_written(name)]
    needed = [*required, *NEEDED_PARAMETERS.get(call.name, ())]
    return [name for name in needed if name not in ("prompt", *NEEDED.get(call.name, ()))]


def product(call: PipelineCall) -> str:
    """What the call makes, by the class and the fields of what it returns; empty for images."""
    if "Onnx" in call.name:
        return "images with ONNX files in place of PyTorch"
    words = [word for made in _returned(call) for word in made]
    for product, pattern in PRODUCTS.items():
        if any(re.fullmatch(pattern, word) for word in words):
            return product
    return ""


def _pictures(call: PipelineCall) -> list[str]:
    """Pictures that the call does not look for before it takes them."""
    looked_for = {
        node.left.id
        for node in nodes_of(call.node)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and isinstance(node.ops[0], ast.IsNot)
    }
    return [
        name
        for name in call.arguments
        if PICTURE.fullmatch(name) and not NO_PICTURE.fullmatch(name) and name not in looked_for
    ]


def _returned(call: PipelineCall) -> Iterator[list[str]]:
    """The class and the fields of each `return SomeOutput(field=…)`."""
    for node in nodes_of(call.node):
        match node:
            case ast.Return(ast.Call(ast.Name(name), _, fields)) if name.endswith("Output"):
                yield [name, *(field.arg for field in fields if field.arg)]
