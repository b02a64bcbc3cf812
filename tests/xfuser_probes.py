"""xfuser on a machine without a GPU: what it asks of the device is answered here, nothing else.

Its configuration, groups, transformers, pipelines and collectives are its own, on CPUs with gloo.
"""

import importlib.machinery
import sys
import types

import torch


def install() -> None:
    """Import xfuser, which looks for a CUDA GPU and for triton's decorators as it is imported."""
    import diffusers

    _ = diffusers.FluxPipeline, diffusers.QwenImagePipeline  # before torch looks like CUDA
    sys.modules.update(_triton())
    torch.version.cuda = "13.0"
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda _=None: types.SimpleNamespace(gcnArchName="")
    torch.cuda.get_device_name = lambda _=None: "none"
    torch.cuda.get_device_capability = lambda _=None: (9, 0)
    torch.cuda.set_device = lambda _: None
    torch.cuda.synchronize = lambda _=None: None
    from xfuser import envs

    envs.get_device = lambda _: torch.device("cpu")
    envs.get_device_name = lambda: "cpu"
    envs.get_torch_distributed_backend = lambda: "gloo"
    import xfuser.model_executor.models.transformers.transformer_flux
    import xfuser.model_executor.models.transformers.transformer_qwen  # noqa: F401

    from runner.strategies import XDit

    XDit._check_device = lambda self, asked: None


def _triton() -> dict[str, types.ModuleType]:
    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    for module in (triton, language):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    triton.jit = lambda function: function
    triton.autotune = triton.heuristics = lambda *_, **__: lambda function: function
    triton.language, language.constexpr = language, object
    return {"triton": triton, "triton.language": language}
