"""Context parallel: the ranks of a replica share the tokens of one image.

Ulysses trades tokens for heads before attention, and back after it; ring passes the keys and values
around; both together are "unified": a ring of Ulysses groups.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from runner.errors import StrategyError
from runner.strategies.base import Asked, Layout, Resolution, Source, StrategyBase, grouped
from runner.strategies.cpu_support import cpu_support
from runner.strategies.data_parallel import load_whole
from runner.strategies.facts import ModelFacts, divisors, takes_padded_heads
from runner.strategies.known import CP_MODELS, remarks
from runner.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["ContextParallel", "valid_sizes"]

Degree = Annotated[int, Field(ge=1)]
Backend = Literal[
    "native",
    "_native_cudnn",
    "_native_flash",
    "_native_npu",
    "flash",
    "flash_hub",
    "flash_varlen_hub",
    "_flash_3_hub",
    "_flash_3_varlen_hub",
    "sage",
    "sage_hub",
]


class ContextParallel(StrategyBase):
    """The "anything" variants take any number of tokens; left open, the runner decides."""

    kind: Literal["context_parallel"] = "context_parallel"
    ulysses_degree: Degree = 1
    ring_degree: Degree = 1
    ulysses_anything: bool | None = None
    ring_anything: bool | None = None
    attention_backend: Backend | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ulysses_anything and (self.ulysses_degree == 1 or self.ring_degree > 1):
            raise ValueError("ulysses_anything goes with ulysses_degree over 1 and ring_degree 1")
        if self.ring_anything and (self.ring_degree == 1 or self.ulysses_degree > 1):
            raise ValueError("ring_anything goes with ring_degree over 1 and ulysses_degree 1")
        return self

    @property
    def ranks(self) -> int:
        return self.ulysses_degree * self.ring_degree

    def layout(self, world: World) -> Layout:
        if self.ulysses_degree > 1 and self.ring_degree > 1:
            factors = f"ulysses {self.ulysses_degree} × ring {self.ring_degree}"
        elif self.ring_degree > 1:
            factors = f"ring {self.ring_degree}"
        else:
            factors = f"ulysses {self.ulysses_degree}"
        return grouped(world, self.ranks, factors)

    def resolve(self, asked: Asked, world: World) -> Resolution:
        self.layout(world)
        if self.ranks == 1:
            return Resolution(self)
        facts = ModelFacts.read(asked.folder)
        if facts.plan_of("_cp_plan") is None:
            raise StrategyError(
                f"strategy: context_parallel: {facts.denoiser_class} has no plan for it in "
                f"diffusers; those that have one: {', '.join(CP_MODELS)}; use data_parallel or "
                f"device_map for {asked.model}"
            )
        self._check_backend(asked)
        self._check_heads(facts)
        if self.ring_degree > 1:
            self._check_mask(asked, facts)
        settled = self._settle_lengths(asked, facts)
        backend = self.attention_backend or "native"
        return Resolution(settled, remarks(facts.denoiser_class, settled.variant, backend))

    @property
    def variant(self) -> str:
        if self.ring_degree > 1:
            return "unified" if self.ulysses_degree > 1 else "ring"
        return "ulysses"

    def _check_backend(self, asked: Asked) -> None:
        backend = self.attention_backend
        if asked.device == "cpu":
            if backend not in (None, "native"):
                raise StrategyError(
                    f"strategy: attention_backend {backend} needs a GPU, and there is none; use "
                    f"native"
                )
            return
        if self.ring_degree > 1 and backend in (None, "native") and asked.device is not None:
            raise StrategyError(
                f"strategy: ring_degree {self.ring_degree} needs an attention backend that returns "
                f"its log-sum-exp, which native does not; use attention_backend: _native_cudnn, "
                f"_native_flash or flash_hub"
            )
        if backend not in (None, "native", "_native_npu") and asked.dtype == "float32":
            raise StrategyError(
                f"strategy: attention_backend {backend} takes no float32; use dtype: bfloat16, or "
                f"attention_backend: native with ulysses_degree"
            )

    def _check_heads(self, facts: ModelFacts) -> None:
        heads, degree = facts.heads, self.ulysses_degree
        if heads is None or heads % degree == 0:
            return
        is_alone = self.ring_degree == 1
        padded = [other for other in range(1, heads + 1) if takes_padded_heads(heads, other)]
        if is_alone and self.ulysses_anything is not False and degree in padded:
            return
        valid = ", ".join(map(str, divisors(heads)))
        others = ", ".join(str(other) for other in padded if heads % other)
        any_up_to = f" (or {others} with ulysses_anything)" if is_alone and others else ""
        raise StrategyError(
            f"strategy: ulysses_degree {degree} does not divide the {heads} attention heads of "
            f"{facts.denoiser_class}; use one of {valid}{any_up_to}"
        )

    def _check_mask(self, asked: Asked, facts: ModelFacts) -> None:
        """Ring attention ignores the mask of a batch of unequal texts: a wrong image, no error."""
        if asked.batch_size > 1 and (facts.text_varies or facts.text_tokens({}) is None):
            raise StrategyError(
                f"strategy: ring_degree {self.ring_degree} with batch_size {asked.batch_size}: "
                f"texts of unequal length need an attention mask, which ring attention gets wrong; "
                f"use batch_size: 1, or ulysses_degree instead of ring_degree"
            )

    def _settle_lengths(self, asked: Asked, facts: ModelFacts) -> Self:
        """The "anything" variant where token counts or heads do not divide. Raises StrategyError
        where it was ruled out, is not to be had, or where there are fewer tokens than ranks."""
        lengths = self.lengths(asked, facts)
        for place, what, count in lengths:
            if count < self.ranks:
                raise StrategyError(
                    f"prompts[{place}]: {what} has {count} tokens, fewer than {self.ranks} ranks a "
                    f"replica; use a degree up to {count}, or a longer text or larger image"
                )
        heads = facts.heads or self.ulysses_degree
        odd = next((found for found in lengths if found[2] % self.ranks), None)
        if odd is None and heads % self.ulysses_degree == 0 and not facts.text_varies:
            return self
        if odd and facts.text_varies and asked.batch_size > 1 and self.ulysses_degree > 2:
            # diffusers 0.42.1 shifts the mask of padded texts: a wrong image, no error.
            raise StrategyError(
                f"prompts[{odd[0]}]: {odd[1]} has {odd[2]} tokens, no multiple of {self.ranks} "
                f"ranks, which is right in batches on 2 ranks only; use batch_size: 1, or "
                f"ulysses_degree: 2"
            )
        name = {"ulysses": "ulysses_anything", "ring": "ring_anything"}.get(self.variant, "")
        if name and getattr(self, name) is not False:
            return self.model_copy(update={name: True})
        if odd is None:
            return self
        place, what, count = odd
        if name:
            remedy = f"leave {name} out"
        else:
            remedy = f"use ulysses_degree: {self.ranks} alone, which takes any number of tokens"
        factors = f"ulysses {self.ulysses_degree} × ring {self.ring_degree} = {self.ranks}"
        raise StrategyError(
            f"prompts[{place}]: {what} has {count} tokens, no multiple of {factors} ranks; "
            f"{remedy}{valid_sizes(facts, what, self.ranks)}"
        )

    def lengths(self, asked: Asked, facts: ModelFacts) -> list[tuple[int, str, int]]:
        """(prompt index, what, tokens) for every distinct count of tokens, as far as known."""
        found: dict[tuple[str, int], int] = {}
        texts: dict[tuple[str, int], tuple[int, str]] = {}
        seen: Any = None
        for image in asked.images():
            cut = facts.text_tokens(image.parameters)
            if facts.text_varies and cut is not None:
                for name, text in _texts(image.prompt, image.parameters):
                    if self._counts(text):
                        texts.setdefault((text, cut), (image.prompt_index, name))
            if image.parameters is seen:
                continue  # images that share their parameters share these counts
            seen = image.parameters
            count = facts.image_tokens(image.parameters)
            if count is not None:
                height, width = facts.size(image.parameters)
                found.setdefault((f"the image {width}×{height}", count), image.prompt_index)
            if cut is not None and not facts.text_varies:
                found.setdefault(("the text", cut), image.prompt_index)
        counts = facts.tokens_of([text for text, _ in texts]) if texts else []
        for ((text, cut), (place, name)), count in zip(texts.items(), counts, strict=True):
            found.setdefault((f'the {name} "{text[:40]}"', min(count, cut)), place)
        return [(place, what, count) for (what, count), place in found.items()]

    def _counts(self, text: str) -> bool:
        """Whether the tokens of a text matter: all do where they must divide; else any number
        does, and only a text of few words can have fewer tokens than ranks."""
        must_divide = self.variant == "unified" or False in (
            self.ulysses_anything,
            self.ring_anything,
        )
        return must_divide or len(text.split()) < 2 * self.ranks

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


def _texts(prompt: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "prompt", prompt
    negative = parameters.get("negative_prompt")
    if isinstance(negative, str):
        yield "negative prompt", negative


def valid_sizes(facts: ModelFacts, what: str, ranks: int) -> str:
    """For an image: sizes whose tokens divide whatever the other side is."""
    if facts.token_side is None or not what.startswith("the image"):
        return ""
    step = math.lcm(facts.token_side * ranks, facts.token_side)
    return f", or a height or width that is a multiple of {step}"
