"""What to use instead of a strategy that does not work: every remedy has passed the same check."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from runner.launch.world import World
from runner.strategies.checks.backends import BACKENDS
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.lengths import Length, lengths

__all__ = ["TokenSharing", "evener", "one_of", "without_plan", "working"]

SHOWN = 3
UNDECIDED: Mapping[str, Any] = {"ulysses_anything": None, "ring_anything": None}


class TokenSharing(Protocol):
    """Context parallel, as its remedies see it."""

    @property
    def ranks(self) -> int: ...
    @property
    def ring_degree(self) -> int: ...
    @property
    def variant(self) -> str: ...
    def takes(self, heads: int | None) -> bool: ...
    def works(self, conditions: Conditions, counts: Sequence[Length], **settings: Any) -> bool:
        """Whether it is right for a job once `settings` replace its own."""


def without_plan(conditions: Conditions) -> str:
    """The strategies that take any model."""
    return "data_parallel" if conditions.target == "cpu" else "data_parallel or device_map"


def one_of(degrees: Sequence[int], world: World, name: str = "one of", ring: int = 1) -> str:
    """`use one of 1, 2, 4`; and which of them divide the number of processes, if not all do."""
    fit = [degree for degree in degrees if world.world_size % (degree * ring) == 0]
    words = f"use {name} {', '.join(map(str, degrees))}"
    if len(fit) in (0, len(degrees)):
        return words
    take = "process takes" if world.world_size == 1 else "processes take"
    return f"{words}; of these {world.world_size} {take} {', '.join(map(str, fit))}"


def working(strategy: TokenSharing, conditions: Conditions, world: World) -> str:
    """The changes, one at a time, that make this job right with context parallel."""
    counts, works = lengths(conditions), strategy.works
    heads = conditions.configs.heads
    ways = itertools.chain(
        _same_degrees(strategy, partial(works, counts=counts), conditions),
        _other_degrees(strategy, partial(works, conditions, counts), heads, counts, world),
        _other_lengths(strategy, conditions),
    )
    return ", or ".join(itertools.islice(ways, SHOWN)) or f"use {without_plan(conditions)}"


def _same_degrees(
    strategy: TokenSharing, works: Callable[..., bool], conditions: Conditions
) -> Iterator[str]:
    if works(conditions, **UNDECIDED):
        yield f"leave {strategy.variant}_anything out"
    if works(replace(conditions, batch_size=1)):
        yield "use batch_size: 1"
    yield from _backends(works, conditions)


def _backends(works: Callable[..., bool], conditions: Conditions) -> Iterator[str]:
    """Another attention backend, another dtype, or both if neither alone helps."""
    half = replace(conditions, dtype="bfloat16")
    names = [name for name in BACKENDS if works(conditions, attention_backend=name)]
    if names:
        yield f"use attention_backend: {' or '.join(names[:SHOWN])}"
    if works(half):
        yield "use dtype: bfloat16"
    elif not names:
        names = [name for name in BACKENDS if works(half, attention_backend=name)]
        if names:
            yield f"use dtype: bfloat16 with attention_backend: {' or '.join(names[:SHOWN])}"


def _other_degrees(
    strategy: TokenSharing,
    works: Callable[..., bool],
    heads: int | None,
    counts: Sequence[Length],
    world: World,
) -> Iterator[str]:
    ring, ranks = strategy.ring_degree, strategy.ranks
    degrees = [d for d in range(1, (heads or 1) + 1) if works(ulysses_degree=d)]
    if degrees and not strategy.takes(heads):
        yield one_of(degrees, world, ring=ring)
    elif max(degrees, default=1) > 1:
        yield one_of([d for d in degrees if d > 1], world, "ulysses_degree", ring)
    fewest = min((count.tokens for count in counts), default=ring)
    smaller = range(min(ring - 1, fewest), 1, -1)
    if degree := next((d for d in smaller if works(ring_degree=d)), None):
        yield f"use ring_degree: {degree}"
    only_ulysses = {"ulysses_degree": ranks, "ring_degree": 1, "attention_backend": None}
    if ring > 1 and works(**only_ulysses, **UNDECIDED):
        yield f"use ulysses_degree: {ranks} instead of ring_degree"


def _other_lengths(strategy: TokenSharing, conditions: Conditions) -> Iterator[str]:
    for words, job in evener(conditions, strategy.ranks):
        if strategy.works(job, lengths(job)):
            yield f"use {words}"
            return


def evener(conditions: Conditions, ranks: int) -> Iterator[tuple[str, Conditions]]:
    """Jobs whose images and texts divide by the ranks, or have at least as many tokens as there are
    ranks; with words for the change. A text as long as its prompt can only be cut elsewhere."""
    configs = conditions.configs
    if configs.token_side is None:
        return
    step = configs.token_side * ranks

    def height(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"height": -(-configs.size(parameters)[0] // step) * step}

    def text(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        tokens = configs.text_tokens(parameters) or ranks
        return {"max_sequence_length": max(ranks, tokens // ranks * ranks)}

    of_image = f"a height or width that is a multiple of {step}"
    of_text = f"a max_sequence_length that is a multiple of {ranks}"
    even_images = conditions.with_parameters(height)
    yield of_image, even_images
    yield of_text, conditions.with_parameters(text)
    yield f"{of_image} and {of_text}", even_images.with_parameters(text)
