"""Packages that a model needs beyond those of the runner, and that are not installed."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import ModelError
from runner.model.json_file import read_json
from runner.model.pipeline_index import components_of
from runner.model.requirements import needed_backends, needed_packages
from runner.units import install_line

__all__ = ["check_packages", "is_there"]

# Quantization methods, as configs name them → the module and the package that has it.
QUANTIZERS = {
    "auto-round": ("auto_round", "auto-round"),
    "awq": ("gptqmodel", "gptqmodel"),
    "aqlm": ("aqlm", "aqlm"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "bitsandbytes_4bit": ("bitsandbytes", "bitsandbytes"),
    "bitsandbytes_8bit": ("bitsandbytes", "bitsandbytes"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "gguf": ("gguf", "gguf"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "hqq": ("hqq", "hqq"),
    "modelopt": ("modelopt", "nvidia-modelopt"),
    "nunchaku_lite": ("kernels", "kernels"),
    "quanto": ("optimum.quanto", "optimum-quanto"),
    "sdnq": ("sdnq", "sdnq"),
    "torchao": ("torchao", "torchao"),
}
# What diffusers calls optional packages, where the module or the package has another name.
MODULES = {"opencv": "cv2", "invisible_watermark": "imwatermark", "quanto": "optimum.quanto"}
PACKAGES = {"cv2": "opencv-python", "imwatermark": "invisible-watermark", "bs4": "beautifulsoup4"}


def check_packages(index: Mapping[str, Any], folder: Path, shown: str) -> None:
    """Raises ModelError with the install line for what the pipeline's code, its components or
    quantized weights need."""
    lacking = {
        package: why for why, module, package in _needs(index, folder) if not is_there(module)
    }
    if lacking:
        what = "; ".join(dict.fromkeys(lacking.values()))
        raise ModelError(f"{shown}: {what}; install it: {install_line(*sorted(lacking))}")


def _needs(index: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str, str]]:
    """What needs it, the module, and the package that has it."""
    pipeline, components = index["_class_name"], components_of(index)
    if isinstance(pipeline, str):
        for module in needed_packages(pipeline):
            yield f"{pipeline} needs {module}", module, PACKAGES.get(module, module)
    for name in (pipeline, *(name for library, name in components.values() if library[0] == "d")):
        for backend in needed_backends(name) if isinstance(name, str) else ():
            module = MODULES.get(backend, backend)
            yield f"{name} needs {backend}", module, PACKAGES.get(module, module)
    for component in components:
        path = folder / component / "config.json"
        method = _method(read_json(path)) if path.exists() else ""
        if method in QUANTIZERS:
            module, package = QUANTIZERS[method]
            yield f"{component} is quantized with {method}, which needs {package}", module, package


def _method(config: dict[str, Any]) -> str:
    """How the weights are quantized, or ""."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    if found.get("load_in_8bit") or found.get("load_in_4bit"):
        return "bitsandbytes"
    return str(found.get("quant_method", ""))


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False
