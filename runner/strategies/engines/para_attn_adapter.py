"""para-attn 0.3.38 with torch 2.13 and diffusers 0.42.1, which are newer. What does not fit is
changed here, for the one pipeline that it is applied to:

- diffusers passes `enable_gqa` to torch's attention, which para-attn's replacement does not take.
- Its ring attention asks for the log-sum-exp of CUDA kernels only.
- Its `parallelize_pipe` replaces the call of the pipeline's *class*, draws seeds and does not take
  Qwen-Image; `parallelize_transformer` alone is enough.
"""

import functools
from typing import Any

from runner.strategies.engines.cpu_support import attention_with_lse

__all__ = ["parallelize"]


def parallelize(transformer: Any, mesh: Any) -> None:
    """Let the ranks of the mesh (1, ring, ulysses) share the tokens of this transformer, by
    para-attn's adapter for FLUX, by our own for Qwen-Image."""
    from para_attn import ops
    from para_attn.context_parallel.diffusers_adapters import flux

    if mesh.device_type == "cpu":
        ops._attention_forward_with_lse = attention_with_lse
    flux.UnifiedAttnMode = _attention_mode()
    if type(transformer).__name__.startswith("Flux"):
        flux.parallelize_transformer(transformer, mesh=mesh)
    else:
        _parallelize_qwen(transformer, mesh, flux.UnifiedAttnMode)


@functools.cache
def _attention_mode() -> Any:
    """para-attn's attention, changed to take diffusers' call. Made late, as torch is imported."""
    from para_attn import UnifiedAttnMode
    from torch.nn.functional import scaled_dot_product_attention

    class AttentionMode(UnifiedAttnMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is scaled_dot_product_attention and kwargs.pop("enable_gqa", False):
                raise ValueError("para-attn has no grouped-query attention")
            return super().__torch_function__(func, types, args, kwargs)

    return AttentionMode


def _parallelize_qwen(transformer: Any, mesh: Any, mode: Any) -> None:
    """Each rank gets its part of the image's and the text's tokens, with their positions."""
    from para_attn import primitives

    group = mesh["ring", "ulysses"]._flatten()
    ranks = group.size()

    def mine(tensor: Any, dim: int) -> Any:
        return primitives.get_assigned_chunk(tensor, dim=dim, group=group)

    positions, forward = transformer.pos_embed.forward, transformer.forward

    @functools.wraps(positions)
    def my_positions(*args: Any, max_txt_seq_len: int, **kwargs: Any) -> Any:
        # The transformer sees only a part of the text, and counts that.
        image, text = positions(*args, max_txt_seq_len=max_txt_seq_len * ranks, **kwargs)
        return mine(image, 0), mine(text, 0)

    @functools.wraps(forward)
    def my_forward(
        hidden_states: Any,  # (B, image tokens, C)
        encoder_hidden_states: Any,  # (B, text tokens, C)
        encoder_hidden_states_mask: Any = None,
        **kwargs: Any,
    ) -> Any:
        if encoder_hidden_states_mask is not None and not encoder_hidden_states_mask.all():
            raise ValueError("texts of unequal length in one batch")
        with mode(mesh):
            output = forward(
                hidden_states=mine(hidden_states, 1),
                encoder_hidden_states=mine(encoder_hidden_states, 1),
                **kwargs,
            )
        whole = primitives.get_complete_tensor(output[0], dim=1, group=group)
        return (whole, *output[1:]) if isinstance(output, tuple) else type(output)(sample=whole)

    transformer.pos_embed.forward, transformer.forward = my_positions, my_forward
