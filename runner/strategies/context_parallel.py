"""Context parallel: the ranks of a replica share the tokens of one image.

Ulysses exchanges tokens for heads before attention and back after it. Ring passes the keys and
values around. Both together are "unified": a ring of Ulysses groups.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from runner.errors import StrategyError
from runner.launch.devices import Machine
from runner.launch.world import World
from runner.model.configs import ModelConfigs, takes_padded_heads
from runner.strategies.base import Resolution, Row, SequenceParallel, Source, kind_field
from runner.strategies.checks.backends import Backend, Needs, check_package, fault
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.lengths import Length, has_mask, lengths
from runner.strategies.checks.proven import CP_MODELS, remarks
from runner.strategies.checks.remedies import without_plan, working
from runner.strategies.data_parallel import load_whole
from runner.strategies.engines.cpu_support import cpu_support
from runner.strategies.estimate.fit import JobSize, replica_sizes, sharing_tokens
from runner.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["ContextParallel"]


class ContextParallel(SequenceParallel):
    """The "anything" variants take any number of tokens; the runner decides where the manifest does
    not say."""

    kind: Literal["context_parallel"] = kind_field(
        "context_parallel", "the GPUs of a replica share the tokens of an image"
    )
    ulysses_anything: bool | None = Field(
        default=None,
        description="take any number of tokens with ulysses_degree; the runner decides if not "
        "given",
        examples=[True],
    )
    ring_anything: bool | None = Field(
        default=None,
        description="take any number of tokens with ring_degree; the runner decides if not given",
        examples=[True],
    )
    attention_backend: Backend | None = Field(
        default=None,
        description="the attention of diffusers to use; its own choice if not given",
        examples=["flash"],
    )

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
        """The key that makes any number of tokens right; "" where there is none, or where the
        manifest says false."""
        name = {"ulysses": "ulysses_anything", "ring": "ring_anything"}.get(self.variant, "")
        return name if name and getattr(self, name) is not False else ""

    @classmethod
    def rows(cls, job: JobSize, machine: Machine) -> list[Row]:
        if job.configs.plan_of("_cp_plan") is None:
            return []
        heads = job.configs.heads or 1
        return [
            Row(cls(ulysses_degree=degree), sharing_tokens(job, degree, machine))
            for degree in replica_sizes(machine)
            if takes_padded_heads(heads, degree)
        ]

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        if self.ranks == 1:
            return super().resolve(conditions, world)
        configs = conditions.configs
        if configs.plan_of("_cp_plan") is None:
            raise StrategyError(
                f"strategy: context_parallel: {configs.denoiser_class} has no plan for it in "
                f"diffusers; those that have one: {', '.join(CP_MODELS)}; use "
                f"{without_plan(conditions)} for {conditions.model}"
            )
        counts = lengths(conditions, self._counts(conditions))
        wrong = self.fault(conditions, counts)
        if wrong:
            raise StrategyError(f"{wrong}; {working(self, conditions, world)}")
        # Last: another world size does not help with degrees that the model does not take.
        self.layout(world)
        backend = self.attention_backend or "native"
        check_package(backend, conditions)
        settled = self._settled(configs, counts)
        return Resolution(settled, remarks(configs.denoiser_class, settled.variant, backend))

    def fault(self, conditions: Conditions, counts: Sequence[Length]) -> str:
        """What is wrong with it for this model and these images; "" if nothing is."""
        configs, is_ring = conditions.configs, self.ring_degree > 1
        masks = has_mask(conditions)
        backend = self.attention_backend or "native"
        needs = Needs(conditions.target, conditions.dtype, is_ring, masks, conditions.trusts_code)
        wrong = fault(backend, needs)
        if wrong:
            return f"strategy: attention_backend {backend} {wrong}"
        if not self.takes(configs.heads):
            return (
                f"strategy: ulysses_degree {self.ulysses_degree} does not divide the "
                f"{counted(configs.heads or 0, 'attention head')} of {configs.denoiser_class}"
            )
        if is_ring and masks:
            return (
                f"strategy: ring_degree {self.ring_degree} with batch_size "
                f"{conditions.batch_size}: texts of unequal length need an attention mask, which "
                f"ring attention gets wrong"
            )
        return self._fault_of_lengths(conditions, counts, masks)

    def works(self, conditions: Conditions, counts: Sequence[Length], **settings: Any) -> bool:
        """Whether it is right for a job once `settings` replace its own."""
        try:
            other = self.model_validate({**self.model_dump(), **settings})
        except ValidationError:
            return False
        return not other.fault(conditions, counts)

    def takes(self, heads: int | None) -> bool:
        """Whether the Ulysses ranks can share the heads."""
        if heads is None or heads % self.ulysses_degree == 0:
            return True
        return self.anything != "" and takes_padded_heads(heads, self.ulysses_degree)

    def _fault_of_lengths(
        self, conditions: Conditions, counts: Sequence[Length], masks: bool
    ) -> str:
        def words(length: Length) -> str:
            where = conditions.where(length.prompt_index, *length.names)
            return f"{where}: {length.what} has {counted(length.tokens, 'token')}"

        short = next((found for found in counts if found.tokens < self.ranks), None)
        if short is not None:
            return f"{words(short)}, fewer than {self.ranks} ranks a replica"
        shifts = masks and self.ulysses_degree > 2
        odd = next((found for found in counts if found.tokens % self.ranks), None)
        if odd is None or (self.anything and not shifts):
            return ""
        if shifts:
            # diffusers 0.42.1 shifts the mask of padded texts: a wrong image, no error.
            ranks, only = self.ranks, "which is right in batches on 2 ranks only"
            return f"{words(odd)}, no multiple of {ranks} ranks, {only}"
        factors = f"ulysses {self.ulysses_degree} × ring {self.ring_degree} = {self.ranks}"
        return f"{words(odd)}, no multiple of {factors} ranks"

    def _settled(self, configs: ModelConfigs, counts: Sequence[Length]) -> Self:
        """With the "anything" variant where token counts or heads do not divide."""
        is_even = all(found.tokens % self.ranks == 0 for found in counts)
        takes_heads = (configs.heads or self.ulysses_degree) % self.ulysses_degree == 0
        if not self.anything or (is_even and takes_heads and not configs.text_varies):
            return self
        return self.model_copy(update={self.anything: True})

    def _counts(self, conditions: Conditions) -> int | None:
        """The tokens from which a text is right whatever its length; None where texts must
        divide."""
        must_divide = not self.anything or (self.ulysses_degree > 2 and has_mask(conditions))
        return None if must_divide else self.ranks

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        pipe = load_whole(source, device)
        if self.ranks == 1:
            return pipe
        import torch
        from diffusers import ContextParallelConfig
        from torch.distributed.device_mesh import DeviceMesh

        # Without a mesh diffusers would use the ranks of other replicas too.
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
