"""ParaAttention: the package para-attn lets the ranks of a replica share the tokens of an image."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from runner.errors import StrategyError
from runner.launch.world import World
from runner.strategies.base import Resolution, SequenceParallel, Source, kind_field
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.packages import (
    Package,
    check_heads,
    check_lengths,
    check_package,
    native,
)
from runner.strategies.checks.proven import remarks
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.data_parallel import load_whole
from runner.strategies.engines.para_attn_adapter import parallelize

if TYPE_CHECKING:
    import torch

__all__ = ["PARA_ATTN", "ParaAttention"]

PARA_ATTN = Package("para-attn", "0.3.38")
MODELS = ("FluxTransformer2DModel", "QwenImageTransformer2DModel")
# Features of the package that draw a wrong image or none, and what to do instead.
REFUSED = {
    "first_block_cache": (
        "para-attn calls FLUX's single blocks without their text, which diffusers 0.42.1 refuses; "
        "leave it out"
    ),
    "parallel_vae": (
        "para-attn decodes in tiles, as diffusers' VAE tiling does: another image than a whole "
        "decode gives; leave it out, each rank decodes the whole"
    ),
}


class ParaAttention(SequenceParallel):
    refused: ClassVar[Mapping[str, str]] = REFUSED

    kind: Literal["para_attn"] = kind_field(
        "para_attn", "the package para-attn shares the tokens of an image"
    )

    @property
    def not_compiled(self) -> str:
        return "blocks that ParaAttention has changed are not proven right when compiled"

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        if self.ranks == 1:
            return super().resolve(conditions, world)
        configs = conditions.configs
        name = configs.denoiser_class
        if name not in MODELS:
            raise StrategyError(
                f"strategy: para_attn: does not work with {name}, only with {', '.join(MODELS)}; "
                f"use {native(configs)} for {conditions.model}"
            )
        check_heads("para_attn", self.ulysses_degree, configs.heads, name)
        if configs.text_varies and conditions.batch_size > 1:
            raise StrategyError(
                f"strategy: para_attn with batch_size {conditions.batch_size}: texts of unequal "
                f"length need an attention mask, which para-attn does not share among ranks; use "
                f"batch_size: 1, or context_parallel"
            )
        if (
            self.ring_degree > 1
            and conditions.dtype == "float32"
            and conditions.target not in ("cpu", None)
        ):
            raise StrategyError(
                "strategy: para_attn: ring_degree needs attention kernels that take no float32; "
                "use dtype: bfloat16, or ulysses_degree"
            )
        check_lengths("para_attn", self.ranks, conditions, ContextParallel())
        self.layout(world)
        lines = check_package("para_attn", PARA_ATTN, conditions)
        return Resolution(self, lines + remarks(name, f"para_attn {self.variant}", "native"))

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        pipe = load_whole(source, device)
        if self.ranks > 1:
            import torch
            from torch.distributed.device_mesh import DeviceMesh

            shape = (1, self.ring_degree, self.ulysses_degree)
            names = ("batch", "ring", "ulysses")
            ranks = torch.arange(self.ranks).reshape(shape)
            parallelize(pipe.transformer, DeviceMesh(device.type, ranks, mesh_dim_names=names))
        return pipe
