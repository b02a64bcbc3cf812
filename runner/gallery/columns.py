"""The images of a job as columns, for the page: small for tens of thousands of them.

Neighbours have much in common, so a column is written in the shortest of four forms; page.js reads
them:

    {"all": 30}                       every row has this value
    {"from": 7, "step": 1}            7, 8, 9 …
    {"of": ["a", "b"], "at": [0, 1]}  few different values, and where each row has which
    {"each": ["a", "b"]}              any values
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from runner.folder.merged_record import DONE, FAILED, SKIPPED, MergedRecord
from runner.folder.paths import OutputFolder
from runner.folder.reports import failure_rows, image_rows
from runner.plan import Plan

__all__ = ["columns", "page_rows"]

MAX_EXACT = 2**53  # beyond it JavaScript rounds whole numbers
STATES = {DONE: "done", FAILED: "failed", SKIPPED: "skipped"}


def page_rows(
    folder: OutputFolder, plan: Plan, record: MergedRecord, states: bytearray
) -> Iterator[dict[str, Any]]:
    """A row for each image that is there, failed or was skipped, in index order."""
    failed = (
        {**row, "seed": task.seed, "parameters": task.parameters}
        for row in failure_rows(plan, record, states)
        if (task := plan.task(row["index"]))
    )
    rows = heapq.merge(image_rows(folder, plan, record, states), failed, key=itemgetter("index"))
    for row in rows:
        # As text it is the same again in a manifest: numbers keep their form.
        text = msgspec.json.encode(row["parameters"]).decode()
        yield {**row, "state": STATES[states[row["index"]]], "parameters": text}


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Name → column. Where a row lacks a key, the column has null."""
    found: dict[str, list[Any]] = {}
    count = 0
    for row in rows:
        for name, value in row.items():
            values = found.setdefault(name, [])
            values += [None] * (count - len(values))
            values.append(_exact(value))
        count += 1
    for values in found.values():
        values += [None] * (count - len(values))
    return {name: _column(values) for name, values in found.items()}


def _exact(value: Any) -> Any:
    """A whole number that JavaScript cannot hold becomes text."""
    return str(value) if isinstance(value, int) and abs(value) > MAX_EXACT else value


def _column(values: Sequence[Any]) -> dict[str, Any]:
    numbers: dict[bytes, int] = {}  # JSON tells 1 from true and holds lists
    at = [numbers.setdefault(msgspec.json.encode(value), len(numbers)) for value in values]
    if len(numbers) == 1:
        return {"all": values[0]}
    if (step := _step(values)) is not None:
        return {"from": values[0], "step": step}
    if 2 * len(numbers) > len(values):
        return {"each": list(values)}
    of = [msgspec.json.decode(text) for text in numbers]
    return {"of": of, "at": at}


def _step(values: Sequence[Any]) -> int | None:
    """The difference between neighbours, if it is the same everywhere."""
    if not all(type(value) is int for value in values):
        return None
    step: int = values[1] - values[0]
    is_even = all(values[i] == values[0] + i * step for i in range(len(values)))
    return step if is_even else None
