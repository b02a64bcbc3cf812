"""What strategies of other packages must check: the package, the heads, the counts of tokens."""

import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runner.errors import StrategyError
from runner.model.configs import ModelConfigs, divisors
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.lengths import Length, lengths
from runner.strategies.checks.proven import CP_MODELS
from runner.strategies.checks.remedies import TokenSharing, evener, without_plan
from runner.units import counted, install_line

__all__ = ["Package", "check_heads", "check_lengths", "check_package", "native"]


class Package(NamedTuple):
    """A package that a strategy hands its work to, and the one version that it was written for."""

    name: str
    version: str

    @property
    def install(self) -> str:
        return install_line(f"{self.name}=={self.version}")


def native(configs: ModelConfigs) -> str:
    """The strategies without other packages that make images with this model."""
    return (
        "context_parallel or data_parallel"
        if configs.denoiser_class in CP_MODELS
        else "data_parallel"
    )


def check_package(kind: str, package: Package, conditions: Conditions) -> list[str]:
    """A remark where the package is missing and the work is done elsewhere.

    Other versions are refused too: a strategy calls functions that may change in any release.
    Raises StrategyError with the line that installs it where the work is done here.
    """
    try:
        found = importlib.metadata.version(package.name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    if found == package.version:
        return []
    here = f"{found} is installed" if found else "it is not installed"
    line = f"{kind} needs {package.name} {package.version}, and {here}: {package.install}"
    if conditions.device is None:
        return [line]
    raise StrategyError(f"strategy: {line}")


def check_heads(kind: str, degree: int, heads: int | None, name: str) -> None:
    """Raises StrategyError where Ulysses cannot share the heads evenly."""
    if heads is not None and heads % degree:
        valid = ", ".join(map(str, divisors(heads)))
        raise StrategyError(
            f"strategy: {kind}: ulysses_degree {degree} does not divide the "
            f"{counted(heads, 'attention head')} of {name}; use one of {valid}"
        )


def check_lengths(
    kind: str, ranks: int, conditions: Conditions, context_parallel: TokenSharing
) -> None:
    """Raises StrategyError for an image or a text whose tokens do not divide by the ranks: the
    package would fail an assertion, or draw a wrong image. Its remedy may be `context_parallel`."""
    counts = lengths(conditions)
    odd = next((found for found in counts if found.tokens % ranks), None)
    if odd is None:
        return
    ways = [*_other_ways(ranks, conditions, counts, context_parallel)]
    raise StrategyError(
        f"{conditions.where(odd.prompt_index, *odd.names)}: {odd.what} has "
        f"{counted(odd.tokens, 'token')}, no multiple of the {ranks} ranks that share them, which "
        f"{kind} needs; use {', or '.join(ways) or without_plan(conditions)}"
    )


def _other_ways(
    ranks: int, conditions: Conditions, counts: Sequence[Length], context_parallel: TokenSharing
) -> Iterator[str]:
    if context_parallel.works(conditions, counts, ulysses_degree=ranks):
        yield f"context_parallel with ulysses_degree: {ranks}, which takes any number"
    for words, job in evener(conditions, ranks):
        if not any(found.tokens % ranks for found in lengths(job)):
            yield words
            return
