"""ParaAttention: ranks share the tokens of an image, FLUX by its adapter, Qwen-Image by ours.

para-attn 0.3.38 is older than torch 2.13 and diffusers 0.42.1. What is amiss is mended here, for
the one pipeline that it is applied to:

- diffusers passes `enable_gqa` to torch's attention, which para-attn's stand-in does not know.
- Its ring attention asks for the log-sum-exp of CUDA kernels only.
- Its `parallelize_pipe` replaces the call of the pipeline's *class*, draws seeds by itself and
  knows no Qwen-Image; `parallelize_transformer` alone does all the work.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from runner.errors import StrategyError
from runner.launch.world import World
from runner.model.configs import ModelFacts
from runner.strategies.base import Asked, Resolution, SequenceParallel, Source
from runner.strategies.cpu_support import attention_with_lse
from runner.strategies.data_parallel import load_whole
from runner.strategies.engines import Package, check_heads, check_lengths, check_package, native
from runner.strategies.known import remarks

if TYPE_CHECKING:
    import torch

__all__ = ["PARA_ATTN", "ParaAttention"]

PARA_ATTN = Package("para-attn", "0.3.38", "para-attn")
MODELS = ("FluxTransformer2DModel", "QwenImageTransformer2DModel")
# Features of the package that no image can be right with, and what to use instead.
REFUSED = {
    "first_block_cache": (
        "para-attn calls FLUX's single blocks without their text, which diffusers 0.42.1 refuses; "
        "leave it out"
    ),
    "parallel_vae": (
        "para-attn decodes in tiles, which is diffusers' VAE tiling and another image than a whole "
        "decode; leave it out, each rank decodes the whole"
    ),
}


class ParaAttention(SequenceParallel):
    refused: ClassVar[Mapping[str, str]] = REFUSED

    kind: Literal["para_attn"] = "para_attn"

    @property
    def not_compiled(self) -> str:
        return "blocks that ParaAttention has changed are not proved right when compiled"

    def resolve(self, asked: Asked, world: World) -> Resolution:
        if self.ranks == 1:
            self.layout(world)
            return Resolution(self)
        facts = ModelFacts.read(asked.folder)
        name = facts.denoiser_class
        if name not in MODELS:
            raise StrategyError(
                f"strategy: para_attn: not right with {name} here, only with {', '.join(MODELS)}; "
                f"use {native(facts)} for {asked.model}"
            )
        check_heads("para_attn", self.ulysses_degree, facts.heads, name)
        if facts.text_varies and asked.batch_size > 1:
            raise StrategyError(
                f"strategy: para_attn with batch_size {asked.batch_size}: texts of unequal length "
                f"need an attention mask, which para-attn does not share among ranks; use "
                f"batch_size: 1, or context_parallel"
            )
        if self.ring_degree > 1 and asked.dtype == "float32" and asked.target not in ("cpu", None):
            raise StrategyError(
                "strategy: para_attn: ring_degree needs attention kernels that take no float32; "
                "use dtype: bfloat16, or ulysses_degree"
            )
        check_lengths("para_attn", self.ranks, asked, facts)
        self.layout(world)
        lines = check_package("para_attn", PARA_ATTN, asked)
        return Resolution(self, lines + remarks(name, f"para_attn {self.variant}", "native"))

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        pipe = load_whole(source, device)
        if self.ranks > 1:
            import torch
            from torch.distributed.device_mesh import DeviceMesh

            shape = (1, self.ring_degree, self.ulysses_degree)
            names = ("batch", "ring", "ulysses")
            ranks = torch.arange(self.ranks).reshape(shape)
            _parallelize(pipe.transformer, DeviceMesh(device.type, ranks, mesh_dim_names=names))
        return pipe


def _parallelize(transformer: Any, mesh: Any) -> None:
    """Let the ranks of the mesh (1, ring, ulysses) share the tokens of this transformer."""
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
    """para-attn's attention, which takes diffusers' call. A class, made late as torch is."""
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
        # The transformer counts the text that it sees, a part of it.
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
