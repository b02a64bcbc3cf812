"""What the strategies of other packages share: is the package there, and is the image whole."""

import importlib.metadata
from typing import NamedTuple

from runner.errors import StrategyError
from runner.model.configs import ModelFacts, divisors
from runner.strategies.base import Asked
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.known import CP_MODELS
from runner.strategies.lengths import lengths
from runner.strategies.remedies import evener, without_plan
from runner.units import counted

__all__ = ["Package", "check_heads", "check_lengths", "check_package", "native"]


class Package(NamedTuple):
    """A package that a strategy hands its work to, and the one version that it was written for."""

    name: str
    version: str
    extra: str

    @property
    def install(self) -> str:
        return f"pip install -c constraints.txt '.[{self.extra}]'"


def native(facts: ModelFacts) -> str:
    """The strategies of our own that make images with this model."""
    return (
        "context_parallel or data_parallel"
        if facts.denoiser_class in CP_MODELS
        else "data_parallel"
    )


def check_package(kind: str, package: Package, asked: Asked) -> list[str]:
    """The package is installed where the work is done; elsewhere its lack is worth a remark.

    Other versions are refused too: a strategy calls what has no promise to stay.
    Raises StrategyError with the line that installs it.
    """
    try:
        found = importlib.metadata.version(package.name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    if found == package.version:
        return []
    here = f"{found} is installed" if found else "it is not installed"
    line = f"{kind} needs {package.name} {package.version}, and {here}: {package.install}"
    if asked.device is None:
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


def check_lengths(kind: str, ranks: int, asked: Asked, facts: ModelFacts) -> None:
    """Raises StrategyError for an image or a text whose tokens do not divide by the ranks: the
    package would end in an assertion, or draw a wrong image."""
    counts = lengths(asked, facts)
    for place, names, what, count in counts:
        if count % ranks:
            shared = ContextParallel().model_copy(update={"ulysses_degree": ranks})
            ways = (
                []
                if shared.fault(asked, facts, counts)
                else [f"context_parallel with ulysses_degree: {ranks}, which takes any number"]
            )
            ways += [
                words
                for words, job in evener(asked, facts, ranks)
                if not any(found.tokens % ranks for found in lengths(job, facts))
            ][:1]
            raise StrategyError(
                f"{asked.where(place, *names)}: {what} has {counted(count, 'token')}, no multiple "
                f"of the {ranks} ranks that share them, which {kind} needs; use "
                f"{', or '.join(ways) or without_plan(asked)}"
            )
