"""Make finished images again as they were made, to compare them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import StrategyError
from runner.launch.devices import set_device, use_threads
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.schema import Manifest
from runner.plan import Plan, Task
from runner.render.results import Failure, Image, Renderer
from runner.strategies import DataParallel, StrategyBase

__all__ = ["made_again"]


def made_again(
    manifest: Manifest,
    plan: Plan,
    folder: Path,
    records: Mapping[int, Mapping[str, Any]],
    world: World,
    stop: Stop,
) -> Iterator[tuple[int, Image | Failure]]:
    """Index → image, for those in `records`, which say how each was made. An image of a batch is
    made in its batch."""
    from runner.render.load import load

    with stop.loading():
        strategy = alone(manifest.strategy, world)
        device = set_device(world, share=strategy.shares_node)
        renderer = load(
            manifest.model_copy(update={"strategy": strategy, "on_flagged": "keep"}),
            folder,
            device=device,
            world=world,
            stop=stop,
            only_loras=plan.only_loras,
        )
    for batch in _batches(plan, records):
        tasks = [plan.task(index) for index in batch]
        yield from _rendered(renderer, tasks, records)


def alone(strategy: StrategyBase, world: World) -> StrategyBase:
    """The strategy, or the plain one where it needs several processes."""
    try:
        return strategy if strategy.layout(world).ranks_per_replica == 1 else DataParallel()
    except StrategyError:
        return DataParallel()


def _batches(plan: Plan, records: Mapping[int, Mapping[str, Any]]) -> Iterator[Sequence[int]]:
    """The batches in which these images were made, the same ones once."""
    for number in range(plan.batch_count):
        batch = plan.batch(number)
        chosen = [index for index in batch if index in records]
        single = [index for index in chosen if records[index].get("batch_size", 1) == 1]
        yield from ([index] for index in single)
        if len(single) < len(chosen):
            yield batch


def _rendered(
    renderer: Renderer, tasks: Sequence[Task], records: Mapping[int, Mapping[str, Any]]
) -> Iterator[tuple[int, Image | Failure]]:
    """Those of a batch that are asked for and that were made in a batch of its kind."""
    is_single = len(tasks) == 1
    of = next(records[task.index] for task in tasks if task.index in records)
    use_threads(of.get("threads"))
    rendered = renderer.render(tasks)
    if rendered.error is not None:
        raise rendered.error
    for result in rendered.results:
        record = records.get(result.task.index)
        if record is not None and (is_single or record.get("batch_size", 1) > 1):
            yield result.task.index, result
