"""The base of every strategy: its settings, which know their layout and preconditions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import ConfigDict, Field, model_validator

from runner.launch.devices import Machine
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.settings import Settings
from runner.strategies.checks.conditions import Conditions
from runner.strategies.estimate.fit import Estimate, JobSize

if TYPE_CHECKING:
    import torch

__all__ = [
    "ONE_WAY",
    "RING",
    "ULYSSES",
    "Degree",
    "Exactness",
    "Resolution",
    "Row",
    "SequenceParallel",
    "Source",
    "StrategyBase",
    "Tier",
    "kind_field",
]

Degree = Annotated[int, Field(ge=1, le=10_000)]

ULYSSES = Field(
    default=1,
    description="ranks that share the tokens of an image, each with a part of the heads",
    examples=[2],
)
RING = Field(
    default=1,
    description="ranks that share the tokens of an image and pass keys and values around",
    examples=[2],
)

ONE_WAY = (
    "diffusers cannot put tensor and context parallel on one model; use degree alone (weights do "
    "not fit) or ulysses_degree alone (activations do not fit)"
)


Tier = Literal["exact", "batch-sensitive", "close", "lossy"]


class Exactness(NamedTuple):
    """How exactly an image can be made again: `exact`, the same pixels on this kind of device;
    `batch-sensitive` and `close`, but for low bits; `lossy`, with an approximation."""

    tier: Tier
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A strategy with nothing left open, and remarks for the user, one line each."""

    strategy: "StrategyBase"
    remarks: list[str] = field(default_factory=list)
    choice: str = ""  # what `auto` chose and why


class Row(NamedTuple):
    """A row of the table that compares strategies on a machine."""

    strategy: "StrategyBase"
    estimate: Estimate


class Source(Protocol):
    """A model folder that can be loaded, with the manifest's dtype and permissions."""

    @property
    def folder(self) -> Path: ...
    @property
    def dtype(self) -> "torch.dtype": ...

    def pipeline(self, **arguments: Any) -> Any:
        """The diffusers pipeline; `arguments` go to its `from_pretrained`."""

    def component(self, name: str, *, model_class: Any = None, **arguments: Any) -> Any:
        """One component, as `model_class` if given; `arguments` go to its `from_pretrained`."""


def kind_field(kind: str, description: str) -> Any:
    """The key `kind` of a strategy."""
    return Field(default=kind, description=description, examples=[kind])


def _name_the_kind(schema: dict[str, Any]) -> None:
    """In the JSON Schema: without its kind a mapping could be any strategy."""
    schema.setdefault("required", []).append("kind")


class StrategyBase(Settings):
    """One way to put the model on the devices of a replica."""

    model_config = ConfigDict(json_schema_extra=_name_the_kind)

    kind: str
    shares_node: ClassVar[bool] = False  # a rank drives its whole share of the node's devices
    own_groups: ClassVar[bool] = False  # a package splits the replica's process group itself
    is_plain: ClassVar[bool] = False  # plain diffusers on one device: right without a check
    refused: ClassVar[Mapping[str, str]] = {}  # keys known from elsewhere: what to do instead

    @model_validator(mode="before")
    @classmethod
    def _refuse_keys(cls, value: Any) -> Any:
        for name in cls.refused.keys() & value if isinstance(value, dict) else ():
            raise ValueError(f"{name}: {cls.refused[name]}")
        return value

    @property
    def ranks(self) -> int:
        """Ranks of a replica."""
        return 1

    @property
    def proven_as(self) -> str:
        """The name under which model/proven.json has it."""
        return self.kind

    @property
    def takes_input_images(self) -> bool:
        """Whether its pipelines can be given input images."""
        return False

    @property
    def tries_batches(self) -> bool:
        """Whether one rank alone can find the fastest batch size for all."""
        return False

    @property
    def exactness(self) -> Exactness:
        """Of images that are made alone, without trouble."""
        return Exactness("close", f"{self.kind}: low bits depend on how the work is shared")

    @property
    def not_compiled(self) -> str:
        """Why the denoiser's blocks cannot be compiled with it; "" where they can."""
        return ""

    @property
    def window(self) -> int:
        """How many batches are best begun together."""
        return 1

    @classmethod
    def rows(cls, job: JobSize, machine: Machine) -> list[Row]:
        """Its settings that the model and the number of devices allow, the smallest replicas
        first. No rows: it is not compared, and `auto` does not choose it."""
        return []

    def for_processes(self, machine: Machine, processes: int) -> Self:
        """A row's strategy, made for one process a device, on so many processes."""
        return self

    def layout(self, world: World) -> Layout:
        """Raises StrategyError where the world size does not fit the degrees."""
        raise NotImplementedError

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        """Check the model, the images and the world, and decide what the manifest leaves open.

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

    ulysses_degree: Degree = ULYSSES
    ring_degree: Degree = RING

    @model_validator(mode="before")
    @classmethod
    def _one_way(cls, value: Any) -> Any:
        """Refuse `degree` beside them, which would look like a misspelt key."""
        has_degree = isinstance(value, dict) and "degree" in value
        if has_degree and value.keys() & {"ulysses_degree", "ring_degree"}:
            raise ValueError(ONE_WAY)
        return value

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
