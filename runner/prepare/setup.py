"""What sets the pipeline up for an image, and the strategies that cannot do so."""

from typing import Any

from runner.errors import StrategyError
from runner.plan import Plan, canonical
from runner.strategies import StrategyBase

__all__ = ["check_setup", "schedulers_in"]


def schedulers_in(plan: Plan) -> list[tuple[int, Any]]:
    """Each scheduler that a prompt has, None for the model's own, with the first such prompt."""
    return [
        (prompt, parameters.get("scheduler"))
        for prompt, parameters, _ in plan.each_once(lambda each: [canonical(each.get("scheduler"))])
    ]


def check_setup(plan: Plan, strategy: StrategyBase) -> None:
    """Raises StrategyError where the strategy cannot change the scheduler."""
    found = schedulers_in(plan)
    prompt, value = found[-1]
    if strategy.kind == "xdit" and (len(found) > 1 or value is not None):
        raise StrategyError(
            f"{plan.where(prompt, 'scheduler')}: scheduler: xdit brings its own form of the "
            f"model's scheduler; leave it out, or use context_parallel"
        )
    if strategy.window > 1 and len(found) > 1:
        raise StrategyError(
            f"{plan.where(prompt, 'scheduler')}: scheduler: with phases all images are begun "
            f"together, with one scheduler; use one for all, or device_map without phases"
        )
