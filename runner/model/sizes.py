"""Which heights and widths a pipeline keeps, by its source and the model's configs."""

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.model.configs import ModelConfigs
from runner.model.signature import PipelineCall
from runner.model.source import class_of, method_of, nodes_of

__all__ = ["keeps_any_size", "made_size", "needs_both_sides", "size_multiple"]

VAE_KEYS = ("block_out_channels", "temperal_downsample")
LATENTS = 128  # of a side by default, for the pipelines with a rule of their own

# HunyuanDiT's SUPPORTED_SHAPE: with use_resolution_binning any other size becomes one of these.
HUNYUAN_SHAPES = (
    *((1024, 1024), (1280, 1280), (1024, 768), (1152, 864), (1280, 960)),
    *((768, 1024), (864, 1152), (960, 1280), (1280, 768), (768, 1280)),
)
# Multiples that are not written as such: latents are rounded up to them.
ROUNDED_UP = {
    "Kandinsky3Pipeline": 64,
    "KandinskyCombinedPipeline": 64,
    "KandinskyV22CombinedPipeline": 64,
    "StableCascadeCombinedPipeline": 128,
    "WuerstchenCombinedPipeline": 128,
}


def keeps_any_size(call: PipelineCall, parameters: Mapping[str, Any]) -> bool:
    """Whether the image is made in a size of the pipeline's own, then resized to what was asked."""
    if not parameters.get("use_resolution_binning", "use_resolution_binning" in call.arguments):
        return False
    return any(
        isinstance(node, ast.Attribute) and node.attr == "resize_and_crop_tensor"
        for node in nodes_of(call.node)
    )


def needs_both_sides(call: PipelineCall) -> bool:
    """Whether a lone height or width is replaced by the default: `if not height or not width`."""
    return any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "not height or not width"
        for node in nodes_of(call.node)
    )


def size_multiple(call: PipelineCall, configs: ModelConfigs) -> int:
    """What height and width must be multiples of, by the source and the configs."""
    found = [configs.size_multiple, ROUNDED_UP.get(call.name, 1)]
    reader = _Reader(call.name, configs)
    for node in nodes_of(class_of(call.name)):
        found += [reader.number(divisor) or 1 for divisor in _divisors(node)]
    return math.lcm(*found)


def made_size(
    call: PipelineCall, configs: ModelConfigs, parameters: Mapping[str, Any]
) -> tuple[tuple[int, int], tuple[int, int], str]:
    """(height, width) that is asked, that the pipeline makes of it, and how to have what is asked.
    A side that is not given has the default of the pipelines with such a rule."""
    factor = configs.vae_factor
    height, width = (parameters.get(side) or LATENTS * factor for side in ("height", "width"))
    rule = RULES.get(call.name)
    made, remedy = rule(height, width, factor, parameters) if rule else ((height, width), "")
    return (height, width), made, remedy


def _hunyuan(
    height: int, width: int, factor: int, parameters: Mapping[str, Any]
) -> tuple[tuple[int, int], str]:
    if (height, width) in HUNYUAN_SHAPES or not parameters.get("use_resolution_binning", True):
        return (height, width), ""
    ratio = min(HUNYUAN_SHAPES, key=lambda shape: abs(shape[1] / shape[0] - width / height))
    alike = [s for s in HUNYUAN_SHAPES if s[1] / s[0] == ratio[1] / ratio[0]]
    made = min(alike, key=lambda shape: abs(shape[0] * shape[1] - width * height))
    return made, "write use_resolution_binning: false"


def _hidream(
    height: int, width: int, factor: int, parameters: Mapping[str, Any]
) -> tuple[tuple[int, int], str]:
    """The same ratio with the area of the default size."""
    scale, step = math.sqrt((LATENTS * factor) ** 2 / (width * height)), 2 * factor
    made = int(height * scale // step * step), int(width * scale // step * step)
    return made, f"use width {made[1]}, height {made[0]}"


def _kontext(
    height: int, width: int, factor: int, parameters: Mapping[str, Any]
) -> tuple[tuple[int, int], str]:
    """The same ratio with the area of max_area."""
    area, step = parameters.get("max_area") or 1024**2, 2 * factor
    sides = round((area * height / width) ** 0.5), round((area * width / height) ** 0.5)
    made = sides[0] // step * step, sides[1] // step * step
    return made, f"write max_area: {height * width}"


Rule = Callable[[int, int, int, Mapping[str, Any]], tuple[tuple[int, int], str]]
RULES: dict[str, Rule] = {
    "HunyuanDiTPipeline": _hunyuan,
    "HunyuanDiTPAGPipeline": _hunyuan,
    "HiDreamImagePipeline": _hidream,
    "FluxKontextPipeline": _kontext,
}


def _divisors(node: ast.AST) -> Iterator[ast.expr]:
    """The divisor of `height % divisor`, and of a height that is rounded down: `height // 16 * 16`
    and `2 * (int(height) // divisor)`."""
    match node:
        case ast.BinOp(ast.Name("height" | "size"), ast.Mod(), divisor):
            yield divisor
        case ast.BinOp(ast.BinOp() as part, ast.Mult(), factor) | ast.BinOp(
            factor, ast.Mult(), ast.BinOp() as part
        ):
            is_side = ast.unparse(part.left) in ("height", "int(height)")
            is_area = "width" in ast.unparse(factor)
            if isinstance(part.op, ast.FloorDiv) and is_side and not is_area:
                yield part.right


class _Reader:
    """The numbers that a pipeline's expressions stand for, as far as the configs say."""

    def __init__(self, class_name: str, configs: ModelConfigs) -> None:
        self.configs = configs
        self.local = {
            target.id: node.value
            for node in nodes_of(class_of(class_name))
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.factor = self._factor(method_of(class_name, "__init__"))

    def number(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> int | None:
        """None where it is not known. `seen` are variables that are being read."""
        match node:
            case ast.Constant(int(value)):
                return value
            case ast.BinOp(left, ast.Mult(), right):
                one, other = self.number(left, seen), self.number(right, seen)
                return one * other if one and other else None
            case ast.Name("vae_scale_factor") | ast.Attribute(_, "vae_scale_factor"):
                return self.factor
            case ast.Attribute(_, "patch_size"):
                patch = self.configs.config.get("patch_size")
                return patch if isinstance(patch, int) else None
            case ast.Name(name) if name in self.local and name not in seen:
                return self.number(self.local[name], seen | {name})
        return None

    def _factor(self, init: ast.FunctionDef | None) -> int | None:
        """Pixels a latent along one side: a constant of the class, or by the VAE's config."""
        for inner in nodes_of(init):
            match inner:
                case ast.Assign([ast.Attribute(_, "vae_scale_factor")], ast.Constant(int(value))):
                    return value
        known = any(self.configs.vae.get(key) for key in VAE_KEYS)
        return self.configs.vae_factor if known else None
