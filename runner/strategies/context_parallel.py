"""Context parallel: the ranks of a replica share the tokens of one image.

Ulysses trades tokens for heads before attention, and back after it; ring passes the keys and values
around; both together are "unified": a ring of Ulysses groups.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from runner.errors import StrategyError
from runner.launch.world import World
from runner.model.configs import ModelFacts, takes_padded_heads
from runner.strategies.backends import Backend, Needs, check_package, fault
from runner.strategies.base import Asked, Resolution, SequenceParallel, Source
from runner.strategies.cpu_support import cpu_support
from runner.strategies.data_parallel import load_whole
from runner.strategies.known import CP_MODELS, remarks
from runner.strategies.lengths import Length, lengths
from runner.strategies.remedies import without_plan, working
from runner.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["ContextParallel"]


class ContextParallel(SequenceParallel):
    """The "anything" variants take any number of tokens; left open, the runner decides."""

    kind: Literal["context_parallel"] = "context_parallel"
    ulysses_anything: bool | None = None
    ring_anything: bool | None = None
    attention_backend: Backend | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ulysses_anything and (self.ulysses_degree == 1 or self.ring_degree > 1):
            raise ValueError("ulysses_anything goes with ulysses_degree over 1 and ring_degree 1")
        if self.ring_anything and (self.ring_degree == 1 or self.ulysses_degree > 1):
            raise ValueError("ring_anything goes with ring_degree over 1 and ulysses_degree 1")
        if self.attention_backend and self.ranks == 1:
            raise ValueError("attention_backend goes with a degree over 1; leave it out")
        return self

    @property
    def anything(self) -> str:
        """The setting that makes any number of tokens right; nothing where none does, or where it
        was ruled out."""
        name = {"ulysses": "ulysses_anything", "ring": "ring_anything"}.get(self.variant, "")
        return name if name and getattr(self, name) is not False else ""

    def resolve(self, asked: Asked, world: World) -> Resolution:
        if self.ranks == 1:
            self.layout(world)
            return Resolution(self)
        facts = ModelFacts.read(asked.folder)
        if facts.plan_of("_cp_plan") is None:
            raise StrategyError(
                f"strategy: context_parallel: {facts.denoiser_class} has no plan for it in "
                f"diffusers; those that have one: {', '.join(CP_MODELS)}; use "
                f"{without_plan(asked)} for {asked.model}"
            )
        counts = lengths(asked, facts, self._counts(asked, facts))
        wrong = self.fault(asked, facts, counts)
        if wrong:
            raise StrategyError(f"{wrong}; {working(self, asked, facts, world)}")
        # Last: with degrees that no model takes, other world sizes would be no remedy.
        self.layout(world)
        backend = self.attention_backend or "native"
        check_package(backend, asked)
        settled = self._settled(facts, counts)
        return Resolution(settled, remarks(facts.denoiser_class, settled.variant, backend))

    def fault(self, asked: Asked, facts: ModelFacts, counts: Sequence[Length]) -> str:
        """What is wrong with it for this model and these images, or nothing."""
        masks, is_ring = facts.has_mask(asked.batch_size), self.ring_degree > 1
        backend = self.attention_backend or "native"
        needs = Needs(asked.target, asked.dtype, is_ring, masks, asked.trusts_code)
        wrong = fault(backend, needs)
        if wrong:
            return f"strategy: attention_backend {backend} {wrong}"
        if not self.takes(facts.heads):
            return (
                f"strategy: ulysses_degree {self.ulysses_degree} does not divide the "
                f"{counted(facts.heads or 0, 'attention head')} of {facts.denoiser_class}"
            )
        if is_ring and masks:
            return (
                f"strategy: ring_degree {self.ring_degree} with batch_size {asked.batch_size}: "
                f"texts of unequal length need an attention mask, which ring attention gets wrong"
            )
        return self._fault_of_lengths(asked, counts, masks)

    def takes(self, heads: int | None) -> bool:
        """Whether the Ulysses ranks can share the heads."""
        if heads is None or heads % self.ulysses_degree == 0:
            return True
        return self.anything != "" and takes_padded_heads(heads, self.ulysses_degree)

    def _fault_of_lengths(self, asked: Asked, counts: Sequence[Length], masks: bool) -> str:
        for place, names, what, count in counts:
            if count < self.ranks:
                return (
                    f"{asked.where(place, *names)}: {what} has {counted(count, 'token')}, fewer "
                    f"than {self.ranks} ranks a replica"
                )
        shifts = masks and self.ulysses_degree > 2
        odd = next((found for found in counts if found.tokens % self.ranks), None)
        if odd is None or (self.anything and not shifts):
            return ""
        where = asked.where(odd.place, *odd.names)
        words = f"{where}: {odd.what} has {counted(odd.tokens, 'token')}, no multiple of"
        if shifts:
            # diffusers 0.42.1 shifts the mask of padded texts: a wrong image, no error.
            return f"{words} {self.ranks} ranks, which is right in batches on 2 ranks only"
        factors = f"ulysses {self.ulysses_degree} × ring {self.ring_degree} = {self.ranks}"
        return f"{words} {factors} ranks"

    def _settled(self, facts: ModelFacts, counts: Sequence[Length]) -> Self:
        """With the "anything" variant where token counts or heads do not divide."""
        is_even = all(found.tokens % self.ranks == 0 for found in counts)
        takes_heads = (facts.heads or self.ulysses_degree) % self.ulysses_degree == 0
        if not self.anything or (is_even and takes_heads and not facts.text_varies):
            return self
        return self.model_copy(update={self.anything: True})

    def _counts(self, asked: Asked, facts: ModelFacts) -> int | None:
        """Texts with more tokens than that are right whatever their number; None where they must
        divide."""
        must_divide = not self.anything or (
            self.ulysses_degree > 2 and facts.has_mask(asked.batch_size)
        )
        return None if must_divide else self.ranks

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        pipe = load_whole(source, device)
        if self.ranks == 1:
            return pipe
        import torch
        from diffusers import ContextParallelConfig
        from torch.distributed.device_mesh import DeviceMesh

        # Without a mesh of its own diffusers would take the ranks of other replicas.
        ranks = torch.arange(self.ranks).reshape(self.ring_degree, self.ulysses_degree)
        mesh = DeviceMesh(device.type, ranks, mesh_dim_names=("ring", "ulysses"))
        config = ContextParallelConfig(
            ring_degree=self.ring_degree,
            ulysses_degree=self.ulysses_degree,
            ulysses_anything=bool(self.ulysses_anything),
            ring_anything=bool(self.ring_anything),
            mesh=mesh,
        )
        if self.attention_backend is not None:
            pipe.transformer.set_attention_backend(self.attention_backend)
        with cpu_support(device.type):
            pipe.transformer.enable_parallelism(config=config)
        return pipe
