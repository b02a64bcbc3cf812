"""Tensor parallel: the ranks of a replica share the weight matrices of the transformer, by heads
and columns. Each reads only its slices from disk; every other component is whole on each rank."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from runner.errors import StrategyError
from runner.launch.devices import Machine
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.strategies.base import (
    ONE_WAY,
    Degree,
    Resolution,
    Row,
    Source,
    StrategyBase,
    kind_field,
)
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.proven import TP_MODELS, remarks
from runner.strategies.checks.remedies import one_of, without_plan
from runner.strategies.data_parallel import load_whole
from runner.strategies.engines.cpu_support import cpu_support
from runner.strategies.estimate.fit import JobSize, replica_sizes, sharing_matrices
from runner.strategies.estimate.sizes import tensor_parallel_degrees, tensor_parallel_shares
from runner.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["TensorParallel"]


class TensorParallel(StrategyBase):
    refused: ClassVar[Mapping[str, str]] = {"ulysses_degree": ONE_WAY, "ring_degree": ONE_WAY}

    kind: Literal["tensor_parallel"] = kind_field(
        "tensor_parallel", "the GPUs of a replica share the weights of the transformer"
    )
    degree: Degree = Field(description="ranks that share the transformer's weights", examples=[2])

    @property
    def ranks(self) -> int:
        return self.degree

    def layout(self, world: World) -> Layout:
        return grouped(world, self.degree, f"degree {self.degree}")

    @classmethod
    def rows(cls, job: JobSize, machine: Machine) -> list[Row]:
        if job.configs.plan_of("_tp_plan") is None:
            return []
        shares = tensor_parallel_shares(job.configs, replica_sizes(machine), job.dtype)
        return [
            Row(cls(degree=degree), sharing_matrices(job, degree, share, machine))
            for degree, share in shares.items()
        ]

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        if self.degree == 1:
            return super().resolve(conditions, world)
        configs = conditions.configs
        name = configs.denoiser_class
        if configs.plan_of("_tp_plan") is None:
            context = ", or context_parallel if only its activations do not fit"
            raise StrategyError(
                f"strategy: tensor_parallel: not supported for {name}; diffusers has plans for "
                f"{', '.join(TP_MODELS)}; use {without_plan(conditions)}"
                f"{context if configs.plan_of('_cp_plan') else ''}"
            )
        valid = tensor_parallel_degrees(configs)
        if self.degree not in valid:
            heads = configs.heads
            by_heads = heads is not None and heads % self.degree
            what = (
                f"the {counted(heads or 0, 'attention head')}" if by_heads else "every weight block"
            )
            raise StrategyError(
                f"strategy: degree {self.degree} does not divide {what} of {name}; "
                f"{one_of(valid, world)}"
            )
        self._check_weights(conditions)
        # Last: another world size does not help with a degree that the model does not take.
        self.layout(world)
        return Resolution(self, remarks(name, "tensor", "native"))

    def _check_weights(self, conditions: Conditions) -> None:
        """Slices can only be read from safetensors."""
        configs = conditions.configs
        weights = {path.suffix for path in (configs.folder / configs.denoiser).glob("*.*")}
        if ".bin" in weights and ".safetensors" not in weights:
            raise StrategyError(
                f"strategy: tensor_parallel reads slices, which pickled weights do not allow; "
                f"convert {conditions.model} to safetensors, or use data_parallel"
            )

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        if self.degree == 1:
            return load_whole(source, device)
        import torch
        from diffusers import TensorParallelConfig
        from torch.distributed.device_mesh import DeviceMesh

        # Of one dimension: diffusers uses the whole mesh.
        mesh = DeviceMesh(device.type, torch.arange(self.degree), mesh_dim_names=("tp",))
        config = TensorParallelConfig(mesh=mesh)
        setup = config.setup
        # diffusers takes the device with the rank's number in the group: in a node's second replica
        # that is the device of a rank of the first.
        config.setup = lambda rank, size, _, mesh: setup(rank, size, device, mesh)
        with cpu_support(device.type):
            transformer = source.component("transformer", parallel_config=config)
        pipe = source.pipeline(transformer=transformer)
        for name, component in pipe.components.items():
            if name != "transformer" and isinstance(component, torch.nn.Module):
                component.to(device)
        return pipe
