"""What sets the pipeline up for an image, and the strategies that cannot do so."""

from typing import Any

from runner.errors import StrategyError
from runner.plan import Plan, canonical
from runner.strategies import StrategyBase

__all__ = ["check_setup", "schedulers_in"]

WITH_LORAS = ("data_parallel", "context_parallel")  # tests/run/test_loras.py proves them


def schedulers_in(plan: Plan) -> list[tuple[int, Any]]:
    """Each scheduler that a prompt has, None for the model's own, with the first such prompt."""
    return [
        (prompt, parameters.get("scheduler"))
        for prompt, parameters, _ in plan.each_once(lambda each: [canonical(each.get("scheduler"))])
    ]


def _check_loras(plan: Plan, strategy: StrategyBase) -> None:
    if not plan.manifest.loras:
        return
    place = f"{plan.root.walk(('loras',)).place}: loras:"
    if strategy.kind not in WITH_LORAS:
        raise StrategyError(
            f"{place} {strategy.kind} loads the model in parts, or in another form; use "
            f"{' or '.join(WITH_LORAS)}, or a model that they were merged into"
        )
    if plan.manifest.compile and plan.only_loras is None:
        raise StrategyError(
            f"{place} images with other LoRAs would be compiled anew; give all images the same, or "
            f"compile: false"
        )


def check_setup(plan: Plan, strategy: StrategyBase) -> None:
    """Raises StrategyError where the strategy cannot change the scheduler or have LoRAs."""
    _check_loras(plan, strategy)
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
