"""What every strategy is: its validated settings, which know their layout and preconditions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from pydantic import Field, model_validator

from runner.launch.devices import Machine
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.settings import Settings

if TYPE_CHECKING:
    import torch

__all__ = [
    "Asked",
    "AskedImage",
    "Degree",
    "Resolution",
    "SequenceParallel",
    "Source",
    "StrategyBase",
    "one_of",
]


Degree = Annotated[int, Field(ge=1, le=10_000)]


def one_of(degrees: Sequence[int], world: World, name: str = "one of", ring: int = 1) -> str:
    """`use one of 1, 2, 4`, and which of them the number of processes takes, where not all."""
    fit = [degree for degree in degrees if world.world_size % (degree * ring) == 0]
    words = f"use {name} {', '.join(map(str, degrees))}"
    if len(fit) in (0, len(degrees)):
        return words
    take = "process takes" if world.world_size == 1 else "processes take"
    return f"{words}; of these {world.world_size} {take} {', '.join(map(str, fit))}"


class AskedImage(Protocol):
    """What a task says about an image."""

    @property
    def prompt_index(self) -> int: ...
    @property
    def prompt(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Image:
    prompt_index: int
    prompt: str
    parameters: Mapping[str, Any]


def _by_number(place: int, *names: str) -> str:
    return f"prompts[{place}]"


@dataclass(frozen=True, slots=True)
class Asked:
    """What preconditions look at, all of it known before weights load."""

    model: str  # as the manifest names it
    folder: Path  # the model's configs
    dtype: str
    batch_size: int
    images: Callable[[], Iterable[AskedImage]]
    device: str | None  # its type, where this machine does the work; None elsewhere
    component_bytes: Callable[[], Mapping[str, int]]  # of the weights, in the dtype
    machine: Callable[[], Machine | None]  # that will do the work; None without accelerators
    planned: Machine | None = None  # another machine, which will do the work
    trusts_code: bool = False  # the manifest lets code from the hub run
    # A prompt's file and line, or those of the parameters that it has from elsewhere.
    where: Callable[..., str] = _by_number

    @property
    def target(self) -> str | None:
        """The type of the devices that will do the work; None where nothing is known of them."""
        return self.planned.device if self.planned else self.device

    def with_parameters(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> "Asked":
        """The same job with `change` over the parameters of each image."""

        def images() -> Iterator[AskedImage]:
            for image in self.images():
                parameters = {**image.parameters, **change(image.parameters)}
                yield _Image(image.prompt_index, image.prompt, parameters)

        return replace(self, images=images)


@dataclass(frozen=True, slots=True)
class Resolution:
    """A strategy with nothing open, and what the user should know of it, a line each."""

    strategy: "StrategyBase"
    remarks: list[str] = field(default_factory=list)
    choice: str = ""  # what `auto` chose and why


class Source(Protocol):
    """A model folder that can be loaded, with the manifest's dtype and leave."""

    @property
    def folder(self) -> Path: ...
    @property
    def dtype(self) -> "torch.dtype": ...

    def pipeline(self, **arguments: Any) -> Any:
        """The diffusers pipeline; `arguments` go to its `from_pretrained`."""

    def component(self, name: str, *, model_class: Any = None, **arguments: Any) -> Any:
        """One component, as another class where one is given; `arguments` go to its
        `from_pretrained`."""


# Keys that name a way to share a model; diffusers puts only one of these on a model.
SHARING = {"degree": "tensor", "ulysses_degree": "context", "ring_degree": "context"}


class StrategyBase(Settings):
    """One way to put the model on the devices of a replica."""

    kind: str
    shares_node: ClassVar[bool] = False  # a rank drives its whole share of the node's devices
    own_groups: ClassVar[bool] = False  # a package splits the replica's process group by itself
    refused: ClassVar[
        Mapping[str, str]
    ] = {}  # keys that a package's users know: what to do instead

    @model_validator(mode="before")
    @classmethod
    def _possible(cls, value: Any) -> Any:
        for name in cls.refused.keys() & value if isinstance(value, dict) else ():
            raise ValueError(f"{name}: {cls.refused[name]}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _one_way(cls, value: Any) -> Any:
        """Tensor and context parallel together, which would pass for a misspelt key."""
        if isinstance(value, dict) and len({SHARING[key] for key in SHARING.keys() & value}) > 1:
            raise ValueError(
                "diffusers cannot put tensor and context parallel on one model; use degree alone "
                "(weights do not fit) or ulysses_degree alone (activations do not fit)"
            )
        return value

    @property
    def ranks(self) -> int:
        """Of a replica."""
        return 1

    @property
    def tries_batches(self) -> bool:
        """Whether one rank alone can find the fastest batch size for all."""
        return False

    @property
    def not_compiled(self) -> str:
        """Why the denoiser's blocks cannot be compiled with it; nothing where they can."""
        return ""

    @property
    def window(self) -> int:
        """How many batches are best begun together."""
        return 1

    def layout(self, world: World) -> Layout:
        """Raises StrategyError where the world size does not fit the degrees."""
        raise NotImplementedError

    def resolve(self, asked: Asked, world: World) -> "Resolution":
        """Check all that must hold of the model, the images and the world, and settle what the
        manifest leaves open.

        Raises StrategyError, one line with a remedy, for what would fail or draw a wrong image.
        """
        self.layout(world)
        return Resolution(self)

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        """The pipeline on the replica's devices. A replica of several ranks has its process group
        by now."""
        raise NotImplementedError


class SequenceParallel(StrategyBase):
    """The ranks of a replica share the tokens of one image: each attends with all heads from its
    part (ring), or with a part of the heads from all (Ulysses)."""

    ulysses_degree: Degree = 1
    ring_degree: Degree = 1

    @property
    def ranks(self) -> int:
        return self.ulysses_degree * self.ring_degree

    @property
    def variant(self) -> str:
        if self.ring_degree > 1:
            return "unified" if self.ulysses_degree > 1 else "ring"
        return "ulysses"

    def layout(self, world: World) -> Layout:
        degrees = {"ulysses": self.ulysses_degree, "ring": self.ring_degree}
        names = degrees if self.variant == "unified" else (self.variant,)
        factors = " × ".join(f"{name} {degrees[name]}" for name in names)
        return grouped(world, self.ranks, factors)
