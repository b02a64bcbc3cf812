"""Data parallel: every rank holds the whole model and makes its own images."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from runner.launch.devices import Machine
from runner.launch.layout import Layout
from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies.base import Exactness, Row, Source, StrategyBase, kind_field
from runner.strategies.estimate.fit import JobSize, whole

if TYPE_CHECKING:
    import torch

__all__ = ["DataParallel", "load_whole"]

LIBRARIES = ("diffusers", "transformers")


class DataParallel(StrategyBase):
    is_plain: ClassVar[bool] = True

    kind: Literal["data_parallel"] = kind_field(
        "data_parallel", "every process makes images of its own"
    )

    @property
    def exactness(self) -> Exactness:
        return Exactness("exact")

    @property
    def takes_input_images(self) -> bool:
        return True

    @property
    def tries_batches(self) -> bool:
        return True

    @classmethod
    def rows(cls, job: JobSize, machine: Machine) -> list[Row]:
        return [Row(cls(), whole(job, machine))]

    def layout(self, world: World) -> Layout:
        return Layout(replicas=world.world_size, replica=world.rank)

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        return load_whole(source, device)


def load_whole(source: Source, device: "torch.device") -> Any:
    """The whole pipeline on one device. Weights are read straight to it; on the CPU the files are
    mapped, so that the ranks of a node share them."""
    return source.pipeline(**_loaded_on(source, device)).to(device)


def _loaded_on(source: Source, device: "torch.device") -> dict[str, Any]:
    """The components with weights, on a device that is no CPU: a pipeline takes the type of a
    device alone, which transformers turns into number LOCAL_RANK, and that need not be visible.
    Those of the model's own code are left to the pipeline."""
    if device.type == "cpu":
        return {}
    configs = ModelConfigs.read(source.folder)
    names = [name for name in configs.networks if configs.index[name][0] in LIBRARIES]
    return {name: source.component(name, device_map={"": device}) for name in names}
