"""Settle the strategy, and check what configs and the machine rule out, before weights load."""

import dataclasses
from collections.abc import Iterator

from runner.errors import StrategyError
from runner.launch.devices import Machine, set_device, this_machine
from runner.launch.world import World
from runner.model import files as model
from runner.model.batching import one_at_a_time
from runner.model.configs import ModelConfigs
from runner.model.schedulers import with_scheduler
from runner.model.weights import component_bytes
from runner.plan import Plan, Task
from runner.prepare.effects import without_effect
from runner.prepare.inputs import strategy_fault
from runner.prepare.preflight import check
from runner.prepare.proof import unproven
from runner.prepare.setup import check_setup, schedulers_in
from runner.render import compiled
from runner.say import say
from runner.strategies import Conditions, Resolution

__all__ = ["check_here", "conditions_of", "settle"]


def check_here(plan: Plan, world: World) -> tuple[Resolution, ModelConfigs]:
    """Check all that can be known before weights load on this machine, and settle the strategy.
    Returns the model's configs too, which are read once.

    Raises StrategyError, ModelError, LaunchError.
    """
    manifest = plan.manifest
    device = set_device(world)
    if device.type == "cpu" and manifest.dtype == "float16":
        raise StrategyError("dtype float16 needs a GPU, and there is none; use float32 or bfloat16")
    configs = model.configs(manifest.model, manifest.pipeline)
    check(plan, configs)
    found = settle(plan, conditions_of(plan, configs, world, device.type), world)
    kept = compiled.check_machine(device) if manifest.compile else ""
    for line in filter(None, (found.choice, *found.remarks, kept)):
        say(line)
    return found, configs


def settle(plan: Plan, conditions: Conditions, world: World) -> Resolution:
    """The manifest's strategy with nothing left open. Raises StrategyError."""
    found = plan.manifest.strategy.resolve(conditions, world)
    strategy = found.strategy
    if plan.manifest.on_out_of_memory == "offload" and (strategy.ranks > 1 or strategy.shares_node):
        raise StrategyError(
            f"on_out_of_memory: offload: with {strategy.kind} the parts of the model stay where "
            f"they are; use tile"
        )
    check_setup(plan, strategy)
    if plan.manifest.compile:
        compiled.check(conditions, strategy, plan.manifest.on_out_of_memory)
    if fault := strategy_fault(plan, strategy):
        raise StrategyError(fault)
    configs = conditions.configs
    of_model = (_one_at_a_time(plan, configs), unproven(strategy, configs))
    remarks = [*found.remarks, *without_effect(plan, configs), *filter(None, of_model)]
    return dataclasses.replace(found, remarks=remarks)


def _one_at_a_time(plan: Plan, configs: ModelConfigs) -> str:
    """A remark where a batch_size over 1 has no effect."""
    each = [with_scheduler(configs, value).scheduler_class for _, value in schedulers_in(plan)]
    reasons = [one_at_a_time(configs.pipeline_class, name) for name in each]
    why = next(filter(None, reasons), "")
    if plan.manifest.largest_batch == 1 or not why:
        return ""
    if not all(reasons):
        return f"some images are made one at a time: {why}"
    return f"batch_size has no effect, images are made one at a time: {why}"


def conditions_of(
    plan: Plan,
    configs: ModelConfigs,
    world: World,
    device: str | None,
    machine: Machine | None = None,
) -> Conditions:
    """What a strategy's preconditions look at. `device` is None where the work is not done here;
    then `machine` is the one that will do it."""
    manifest = plan.manifest
    return Conditions(
        model=manifest.model.id,
        configs=configs,
        dtype=manifest.dtype,
        batch_size=manifest.largest_batch,
        images=plan.tasks,
        batches=None if manifest.batch_size == "auto" else lambda: _batches(plan),
        where=plan.where,
        device=device,
        component_bytes=lambda: component_bytes(manifest.model, manifest.dtype),
        machine=lambda: machine or this_machine(world),
        planned=machine,
        trusts_code=manifest.model.trust_remote_code,
    )


def _batches(plan: Plan) -> Iterator[list[Task]]:
    """The tasks of each batch."""
    for number in range(plan.batch_count):
        yield [plan.task(index) for index in plan.batch(number)]
