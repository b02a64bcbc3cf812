"""What all launches on a folder have cost and made: by launch, host and strategy."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import msgspec

__all__ = ["HostSpent", "Spent", "Sums", "accounting", "spent_of"]

MOST_LAUNCHES = 100  # that are listed one by one
HOUR_S = 3600


class HostSpent(msgspec.Struct):
    """A host's part of a launch."""

    processes: int = 0
    gpus: int = 0
    images: int = 0
    failed: int = 0


class Spent(msgspec.Struct):
    """What a launch has cost and made so far."""

    launch: str
    generation: int
    strategy: str
    seconds: float
    hosts: dict[str, HostSpent]


class Sums(TypedDict):
    """What summary.json says of all launches together."""

    launches: int
    process_hours: float
    gpu_hours: float
    images: int
    failed: int


def spent_of(
    launch: str,
    generation: int,
    strategy: str,
    seconds: float,
    replicas: Iterable[Mapping[str, Any]],
) -> Spent:
    """From the rows of summary.json."""
    hosts: dict[str, HostSpent] = {}
    for row in replicas:
        host = hosts.setdefault(row["host"], HostSpent())
        host.processes += len(row["ranks"])
        host.gpus += row["devices"]
        host.images += row["images"]
        host.failed += row["failed"]
    return Spent(launch, generation, strategy, round(seconds, 1), hosts)


def accounting(launches: Iterable[Spent]) -> dict[str, Any]:
    """As summary.json has it. Hours count each process and each GPU for as long as the launch."""
    known = sorted(launches, key=lambda one: (one.generation, one.launch))
    parts = [(one, name, host) for one in known for name, host in one.hosts.items()]

    def sums(by: Callable[[Spent, str], str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for one, name, host in parts:
            _add(found.setdefault(by(one, name), _nothing()), one.seconds, host)
        return {key: _rounded(values) for key, values in found.items()}

    by_launch = sums(lambda one, _: one.launch)
    listed = [
        {"launch": one.launch, "strategy": one.strategy, "seconds": one.seconds}
        | by_launch.get(one.launch, _nothing())
        for one in known[-MOST_LAUNCHES:]
    ]
    whole = sums(lambda *_: "all").get("all", _nothing())
    return {
        "launches": len(known),
        **whole,
        "by_strategy": sums(lambda one, _: one.strategy),
        "by_host": sums(lambda _, name: name),
        "by_launch": listed,
    }


def _nothing() -> dict[str, Any]:
    return {"process_hours": 0.0, "gpu_hours": 0.0, "images": 0, "failed": 0}


def _add(values: dict[str, Any], seconds: float, host: HostSpent) -> None:
    values["process_hours"] += seconds * host.processes / HOUR_S
    values["gpu_hours"] += seconds * host.gpus / HOUR_S
    values["images"] += host.images
    values["failed"] += host.failed


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 4) for key, value in values.items()}
