"""What would work instead of a strategy that does not: every remedy has passed the check itself."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from runner.launch.world import World
from runner.model.configs import ModelFacts
from runner.strategies.backends import BACKENDS
from runner.strategies.base import Asked, one_of
from runner.strategies.lengths import Length, lengths

if TYPE_CHECKING:
    from runner.strategies.context_parallel import ContextParallel

__all__ = ["evener", "without_plan", "working"]

SHOWN = 3


def without_plan(asked: Asked) -> str:
    """What holds any model."""
    return "data_parallel" if asked.target == "cpu" else "data_parallel or device_map"


def working(strategy: "ContextParallel", asked: Asked, facts: ModelFacts, world: World) -> str:
    """The changes that make this job right with context parallel, one at a time."""
    ways = itertools.islice(_ways(strategy, asked, facts, world), SHOWN)
    return ", or ".join(ways) or f"use {without_plan(asked)}"


def _ways(
    strategy: "ContextParallel", asked: Asked, facts: ModelFacts, world: World
) -> Iterator[str]:
    counts = lengths(asked, facts)
    ring, ranks = strategy.ring_degree, strategy.ranks
    undecided: dict[str, Any] = {"ulysses_anything": None, "ring_anything": None}

    def works(job: Asked = asked, of: Sequence[Length] = counts, **settings: Any) -> bool:
        try:
            other = strategy.model_validate({**strategy.model_dump(), **settings})
        except ValidationError:
            return False
        return not other.fault(job, facts, of)

    if works(**undecided):
        name = "ulysses_anything" if strategy.ulysses_anything is False else "ring_anything"
        yield f"leave {name} out"
    if works(replace(asked, batch_size=1)):
        yield "use batch_size: 1"
    yield from _backends(works, replace(asked, dtype="bfloat16"))
    degrees = [d for d in range(1, (facts.heads or 1) + 1) if works(ulysses_degree=d)]
    if degrees and not strategy.takes(facts.heads):
        yield one_of(degrees, world, ring=ring)
    elif max(degrees, default=1) > 1:
        yield one_of([d for d in degrees if d > 1], world, "ulysses_degree", ring)
    fewest = min((count.tokens for count in counts), default=ring)
    smaller = (d for d in range(min(ring - 1, fewest), 1, -1) if works(ring_degree=d))
    for degree in itertools.islice(smaller, 1):
        yield f"use ring_degree: {degree}"
    if ring > 1 and works(ulysses_degree=ranks, ring_degree=1, attention_backend=None, **undecided):
        yield f"use ulysses_degree: {ranks} instead of ring_degree"
    even = (words for words, job in evener(asked, facts, ranks) if works(job, lengths(job, facts)))
    for words in itertools.islice(even, 1):
        yield f"use {words}"


def _backends(works: Callable[..., bool], half: Asked) -> Iterator[str]:
    """Other attention backends, another dtype, or both where neither alone helps."""
    names = [name for name in BACKENDS if works(attention_backend=name)]
    if names:
        yield f"use attention_backend: {' or '.join(names[:SHOWN])}"
    if works(half):
        yield "use dtype: bfloat16"
    elif not names:
        names = [name for name in BACKENDS if works(half, attention_backend=name)]
        if names:
            yield f"use dtype: bfloat16 with attention_backend: {' or '.join(names[:SHOWN])}"


def evener(asked: Asked, facts: ModelFacts, ranks: int) -> Iterator[tuple[str, Asked]]:
    """Jobs whose images and texts divide by the ranks, or at least are as many, with words for
    what is changed. Texts as long as their prompt are only cut elsewhere."""
    if facts.token_side is None:
        return
    step = facts.token_side * ranks

    def height(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"height": -(-facts.size(parameters)[0] // step) * step}

    def text(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        tokens = facts.text_tokens(parameters) or ranks
        return {"max_sequence_length": max(ranks, tokens // ranks * ranks)}

    of_image = f"a height or width that is a multiple of {step}"
    of_text = f"a max_sequence_length that is a multiple of {ranks}"
    yield of_image, asked.with_parameters(height)
    yield of_text, asked.with_parameters(text)
    yield f"{of_image} and {of_text}", asked.with_parameters(height).with_parameters(text)
