"""Tensor parallel: the ranks of a replica share the weight matrices of the transformer, by heads
and columns. Each reads only its slices from disk; every other component is whole on each rank."""

from typing import TYPE_CHECKING, Any, Literal

from runner.errors import StrategyError
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.model.configs import ModelFacts
from runner.strategies.base import Asked, Degree, Resolution, Source, StrategyBase, one_of
from runner.strategies.cpu_support import cpu_support
from runner.strategies.data_parallel import load_whole
from runner.strategies.known import TP_MODELS, remarks
from runner.strategies.remedies import without_plan
from runner.strategies.sizes import tensor_parallel_degrees
from runner.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["TensorParallel"]


class TensorParallel(StrategyBase):
    kind: Literal["tensor_parallel"] = "tensor_parallel"
    degree: Degree

    @property
    def ranks(self) -> int:
        return self.degree

    def layout(self, world: World) -> Layout:
        return grouped(world, self.degree, f"degree {self.degree}")

    def resolve(self, asked: Asked, world: World) -> Resolution:
        if self.degree == 1:
            self.layout(world)
            return Resolution(self)
        facts = ModelFacts.read(asked.folder)
        name = facts.denoiser_class
        if facts.plan_of("_tp_plan") is None:
            context = ", or context_parallel if its activations are what does not fit"
            raise StrategyError(
                f"strategy: tensor_parallel: not supported for {name}; diffusers has plans for "
                f"{', '.join(TP_MODELS)}; use {without_plan(asked)}"
                f"{context if facts.plan_of('_cp_plan') else ''}"
            )
        valid = tensor_parallel_degrees(facts)
        if self.degree not in valid:
            heads = facts.heads
            by_heads = heads is not None and heads % self.degree
            what = (
                f"the {counted(heads or 0, 'attention head')}" if by_heads else "every weight block"
            )
            raise StrategyError(
                f"strategy: degree {self.degree} does not divide {what} of {name}; "
                f"{one_of(valid, world)}"
            )
        self._check_weights(asked, facts)
        # Last: with a degree that the model does not take, other world sizes would be no remedy.
        self.layout(world)
        return Resolution(self, remarks(name, "tensor", "native"))

    def _check_weights(self, asked: Asked, facts: ModelFacts) -> None:
        """A slice can only be read from safetensors."""
        weights = {path.suffix for path in (asked.folder / facts.denoiser).glob("*.*")}
        if ".bin" in weights and ".safetensors" not in weights:
            raise StrategyError(
                f"strategy: tensor_parallel reads slices, which pickled weights do not allow; "
                f"convert {asked.model} to safetensors, or use data_parallel"
            )

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        if self.degree == 1:
            return load_whole(source, device)
        import torch
        from diffusers import TensorParallelConfig
        from torch.distributed.device_mesh import DeviceMesh

        # One dimension: diffusers takes the whole mesh it is given for its own.
        mesh = DeviceMesh(device.type, torch.arange(self.degree), mesh_dim_names=("tp",))
        config = TensorParallelConfig(mesh=mesh)
        setup = config.setup
        # diffusers takes the rank's number for its device, which in the second replica of a node is
        # the device of a rank of the first.
        config.setup = lambda rank, size, _, mesh: setup(rank, size, device, mesh)
        with cpu_support(device.type):
            transformer = source.component("transformer", parallel_config=config)
        pipe = source.pipeline(transformer=transformer)
        for name, component in pipe.components.items():
            if name != "transformer" and isinstance(component, torch.nn.Module):
                component.to(device)
        return pipe
