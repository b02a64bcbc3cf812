"""Context and tensor parallel without an accelerator, for which diffusers lacks four small things.
With an accelerator nothing here is used."""

import contextlib
from collections.abc import Iterator
from typing import Any

from runner.model.replaced import replaced

__all__ = ["attention_with_lse", "cpu_support"]


@contextlib.contextmanager
def cpu_support(device_type: str) -> Iterator[None]:
    """For the calls that make a model parallel. Does nothing on an accelerator."""
    if device_type != "cpu":
        yield
        return
    import torch
    from diffusers.hooks import context_parallel, tensor_parallel
    from diffusers.models import attention_dispatch

    # These two are used at every call, so they stay.
    attention_dispatch._native_attention_forward_op = _attention
    context_parallel._all_gather_anything = _all_gather
    # `rank % torch.accelerator.device_count()` divides by zero without an accelerator.
    devices = (*tensor_parallel._SUPPORTED_TP_DEVICES, "cpu")
    with (
        replaced(torch.accelerator, device_count=lambda: 1),
        replaced(tensor_parallel, _SUPPORTED_TP_DEVICES=devices),
    ):
        yield


def _all_gather(tensor: Any, dim: int, group: Any) -> Any:
    """The parts of all ranks joined. They may differ in length, which gloo's own gather refuses and
    NCCL's takes; so they are sent padded to the longest."""
    import torch
    import torch.distributed as dist
    from diffusers.models._modeling_parallel import gather_size_by_comm

    lengths = gather_size_by_comm(tensor.shape[dim], group)
    missing = list(tensor.shape)
    missing[dim] = max(lengths) - tensor.shape[dim]
    padded = torch.cat([tensor, tensor.new_zeros(missing)], dim).contiguous()
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    joined = [part.narrow(dim, 0, own) for part, own in zip(parts, lengths, strict=True)]
    return torch.cat(joined, dim)


def _attention(
    ctx: Any,
    query: Any,  # (B, S, H, D), as key and value
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _save_ctx: bool = True,
    _parallel_config: Any = None,
) -> Any:
    """Native attention, on request with the log-sum-exp (B, S, H) of its scores, by which ring
    attention merges its parts. diffusers' native backend refuses that. For inference only."""
    import torch

    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if not return_lse:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return out.transpose(1, 2)
    out, lse = attention_with_lse(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    return out.transpose(1, 2), lse.transpose(1, 2)


def attention_with_lse(
    query: Any,  # (B, H, S, D), as key and value
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """torch's attention on a CPU with the log-sum-exp (B, H, S) of its scores."""
    import torch

    if attn_mask is not None:
        raise ValueError("ring attention with a mask gives a wrong image")
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, scale=scale
    )
