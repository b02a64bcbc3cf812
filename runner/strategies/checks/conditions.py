"""What preconditions look at: the model's configs, the images to make, the devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from runner.launch.devices import Machine
from runner.model.configs import ModelConfigs

__all__ = ["Conditions", "PlannedImage"]


class PlannedImage(Protocol):
    """What a task says about an image."""

    @property
    def prompt_index(self) -> int: ...
    @property
    def prompt(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Changed:
    """A planned image with other parameters."""

    prompt_index: int
    prompt: str
    parameters: Mapping[str, Any]


def _by_number(prompt_index: int, *names: str) -> str:
    return f"prompts[{prompt_index}]"


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of it is known before weights load."""

    model: str  # as the manifest names it
    configs: ModelConfigs
    dtype: str
    batch_size: int
    images: Callable[[], Iterable[PlannedImage]]
    device: str | None  # the type of this machine's devices; None where the work is not done here
    component_bytes: Callable[[], Mapping[str, int]]  # of the weights, in the dtype
    machine: Callable[[], Machine | None]  # that will do the work; None without accelerators
    planned: Machine | None = None  # another machine, which will do the work
    trusts_code: bool = False  # the manifest allows code from the hub to run
    # The images of each pipeline call; None where that is not known yet (batch_size: auto).
    batches: Callable[[], Iterable[Sequence[PlannedImage]]] | None = None
    # Prompt index, names of parameters → the file and line where the manifest sets them.
    where: Callable[..., str] = _by_number

    @property
    def target(self) -> str | None:
        """The type of the devices that will do the work; None where it is not known."""
        return self.planned.device if self.planned else self.device

    def with_parameters(
        self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> "Conditions":
        """The same job; what `change` returns for an image's parameters replaces those."""

        def changed(image: PlannedImage) -> PlannedImage:
            parameters = {**image.parameters, **change(image.parameters)}
            return _Changed(image.prompt_index, image.prompt, parameters)

        def images() -> Iterator[PlannedImage]:
            return map(changed, self.images())

        if (of := self.batches) is None:
            return replace(self, images=images)

        def batches() -> Iterator[Sequence[PlannedImage]]:
            return ([*map(changed, batch)] for batch in of())

        return replace(self, images=images, batches=batches)
