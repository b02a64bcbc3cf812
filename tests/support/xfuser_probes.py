"""xfuser on a machine without a GPU: what it asks of the device is answered here, nothing else.

Its configuration, groups, transformers, pipelines and collectives are its own, on CPUs with gloo.
Only what a sender of PipeFusion may expect of NCCL is made up for.
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
    _send_as_nccl_does()


def _send_as_nccl_does() -> None:
    """PipeFusion drops the handles of its sends, and sends sizes before anyone receives them. NCCL
    sends anyway; gloo loses a send with its handle, and lets a sender wait for the receiver."""
    import torch.distributed as dist
    from xfuser.core.distributed.group_coordinator import PipelineGroupCoordinator as Group

    sent = []  # handles, with the tensors that they send

    def keeping(send):
        def keep(self, tensor):
            sent.append((send(self, tensor), tensor))
            return sent[-1][0]

        return keep

    def batch(operations):
        works = [op.op(op.tensor, op.peer, group=op.group) for op in operations]
        pairs = list(zip(works, operations, strict=True))
        sent.extend((work, op.tensor) for work, op in pairs if op.op is dist.isend)
        return [work for work, op in pairs if op.op is dist.irecv]

    for name in ("_pipeline_isend", "_pipeline_isend_skip"):
        setattr(Group, name, keeping(getattr(Group, name)))
    dist.batch_isend_irecv = batch


def _triton() -> dict[str, types.ModuleType]:
    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    for module in (triton, language):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    triton.jit = lambda function: function
    triton.autotune = triton.heuristics = lambda *_, **__: lambda function: function
    triton.language, language.constexpr = language, object
    return {"triton": triton, "triton.language": language}
