"""The table of `plan --devices`: what each strategy would need on a machine."""

import json
from typing import Any, Literal

from runner.errors import LaunchError, StrategyError
from runner.launch.devices import Machine
from runner.model.configs import ModelConfigs
from runner.model.weights import component_bytes
from runner.plan import Plan
from runner.strategies.auto import choose, rows
from runner.strategies.base import Row
from runner.strategies.estimate.fit import OVERHEAD, JobSize
from runner.units import GIB, bytes_in, whole_number

__all__ = ["compare", "machine_of", "table"]

MAX_DEVICES = 10_000


def machine_of(devices: str | None, interconnect: str | None) -> Machine | None:
    """The machine that the command line names, as in 4x80GiB. Raises LaunchError."""
    if devices is None:
        if interconnect is not None:
            raise LaunchError("--interconnect: of which machine? use --devices 4x80GiB with it")
        return None
    count, _, memory = devices.lower().partition("x")
    link: Literal["nvlink", "pcie"] = "nvlink" if interconnect == "nvlink" else "pcie"
    try:
        return Machine(whole_number(count, MAX_DEVICES), bytes_in(memory), link)
    except ValueError:
        raise LaunchError(
            f"--devices {devices[:40]}: write their number, up to {MAX_DEVICES}, and the memory of "
            f"each, as in 4x80GiB"
        ) from None


def compare(plan: Plan, configs: ModelConfigs, machine: Machine) -> dict[str, Any]:
    """Every strategy on the machine, and what `auto` would choose. Raises ModelError."""
    manifest = plan.manifest
    dtype = manifest.dtype
    sizes = component_bytes(manifest.model, dtype)
    job = JobSize.of(configs, dtype, sizes, manifest.largest_batch, plan.tasks())
    found = rows(job, machine)
    try:
        strategy, why = choose(job, machine, found)
        choice = f"{strategy.kind}, since {why}"
    except StrategyError as error:
        choice = str(error).removeprefix("strategy: auto: ")
    return {
        "machine": str(machine),
        "components": sizes,
        "activations": {"denoising": job.denoising, "decoding": job.decoding},
        "overhead": OVERHEAD,
        "strategies": [_values(row) for row in found],
        "auto": choice,
    }


def _values(row: Row) -> dict[str, Any]:
    estimate = row.estimate
    return {
        "strategy": row.strategy.kind,
        "settings": row.strategy.model_dump(exclude_defaults=True),
        "ranks_per_replica": estimate.ranks_per_replica,
        "replicas": estimate.replicas,
        "weights": estimate.weights,
        "activations": estimate.activations,
        "headroom": estimate.headroom,
        "fits": estimate.fits,
        "why": estimate.why,
    }


def table(found: dict[str, Any]) -> list[str]:
    """The comparison in lines, sizes in GiB."""
    parts = ", ".join(f"{name} {_number(size)}" for name, size in found["components"].items())
    activations = found["activations"]
    lines = [
        f"machine    {found['machine']}",
        f"weights    {parts} GiB",
        f"estimate   activations {_number(activations['denoising'])} GiB denoising, "
        f"{_number(activations['decoding'])} GiB decoding, {_number(found['overhead'])} GiB "
        f"overhead a device",
        "",
        f"{'strategy':<36} {'ranks':>5} {'replicas':>8} {'weights':>8} {'headroom':>8}  fits  why",
    ]
    for row in found["strategies"]:
        settings = ", ".join(
            f"{key}: {json.dumps(value)}" for key, value in row["settings"].items()
        )
        name = f"{row['strategy']} {{{settings}}}" if settings else row["strategy"]
        fits = "yes" if row["fits"] else "no"
        lines.append(
            f"{name:<36} {row['ranks_per_replica']:>5} {row['replicas']:>8} "
            f"{_number(row['weights']):>8} {_number(row['headroom']):>8}  {fits:<4}  {row['why']}"
        )
    return [*lines, "", f"auto       {found['auto']}"]


def _number(size: int) -> str:
    """In GiB, for a column."""
    return f"{size / GIB:.2f}"
