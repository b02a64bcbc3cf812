"""metadata.jsonl and failures.jsonl: the images that are there, and those that failed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pydantic_core

from runner.folder import files
from runner.folder.merged_record import DONE, FAILED, SKIPPED, MergedRecord
from runner.folder.paths import OutputFolder
from runner.plan import Plan, own

__all__ = ["failure_rows", "image_rows", "rebuild"]


def rebuild(
    folder: OutputFolder,
    plan: Plan,
    record: MergedRecord,
    states: bytearray,
    launch: str,
    check: Callable[[], None] = files.no_check,
) -> None:
    """Write both reports again from the journals, in index order, line by line. `check` is called
    before each of them gets its name."""
    metadata = map(_line, image_rows(folder, plan, record, states))
    files.replace(folder.metadata, metadata, launch, check)
    if FAILED in states or SKIPPED in states:
        failures = map(_line, failure_rows(plan, record, states))
        files.replace(folder.failures, failures, launch, check)
    else:
        check()
        folder.failures.unlink(missing_ok=True)


def image_rows(
    folder: OutputFolder, plan: Plan, record: MergedRecord, states: bytearray
) -> Iterator[dict[str, Any]]:
    """What metadata.jsonl says about each image that is there."""
    model = plan.manifest.model
    for task in plan.tasks():
        if states[task.index] == DONE:
            done = record.done[task.index]
            yield {
                "file_name": folder.image_name(task),
                "index": task.index,
                "prompt_index": task.prompt_index,
                "variation": task.variation,
                **own(task),
                "prompt": task.prompt,
                "seed": task.seed,
                "parameters": task.parameters,
                "model": model.id,
                "revision": model.revision,
                **done.made,
                "fingerprint": done.fingerprint,
            }


def failure_rows(plan: Plan, record: MergedRecord, states: bytearray) -> Iterator[dict[str, Any]]:
    """What failures.jsonl says about each image that failed or was skipped."""
    for index, state in enumerate(states):
        if state in (FAILED, SKIPPED):
            failed = record.kept_out.get(index) or record.failed[index]
            fault = {"kind": failed.kind, "error": failed.error}
            task = plan.task(index)
            yield {"index": index, "prompt": task.prompt, **own(task), **fault}


def _line(values: Mapping[str, Any]) -> bytes:
    return pydantic_core.to_json(values) + b"\n"
