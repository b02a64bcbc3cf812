"""A glance at the summary that a working job keeps up to date: no journal and no image is read."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from runner.folder import owners
from runner.folder.accounting import Sums
from runner.folder.paths import OutputFolder
from runner.folder.summary import (
    SILENT_AFTER_S,
    ReplicaRow,
    TimelineRows,
    is_like,
    is_of_launch,
    read_summary,
    rows_in,
)
from runner.launch.layout import Part

__all__ = ["Glance", "glance", "live_rows", "silent_rows"]

FRESH_S = 5.0  # an older summary is not how the job stands: rank 0 is paused, or its disk is full
POLL_S = 0.2


class RunningSummary(TypedDict):
    """summary.json as rank 0 writes it while it works, as far as somebody reads it."""

    outcome: Literal["running"]
    exit_code: int
    images: int
    done: int
    failed: int
    skipped: int
    missing: int
    made: int
    seconds: float | None
    images_per_second: float | None
    current_images_per_second: float | None
    left_s: float | None
    replicas: list[ReplicaRow]
    timeline: TimelineRows
    accounting: Sums
    errors: list[str]
    first_error: None


@dataclass(frozen=True, slots=True)
class Glance:
    """A running job's last summary, and how old it is at least."""

    values: Mapping[str, Any]
    age_s: float

    @property
    def is_fresh(self) -> bool:
        return self.age_s <= FRESH_S


def glance(folder: OutputFolder, part: Part | None) -> Glance | None:
    """None where no job works on this part, or has not written a summary yet. From another machine
    it watches for some seconds whether the summary changes."""
    path = folder.live_summary(part)
    values = read_summary(path)
    if not is_like(values, RunningSummary) or not _has_owner(folder, part, values):
        return None
    age_s = owners.seconds_since(values.get("heartbeat"))
    return Glance(values, age_s) if age_s is not None else _watched(path, values)


def _has_owner(folder: OutputFolder, part: Part | None, values: Mapping[str, Any]) -> bool:
    """Whether the job that wrote the summary lives."""
    lock = owners.lock_file(folder, part)
    alive = owners.living([lock], owners.GLANCE_S).get(lock, {})
    return is_of_launch(values, str(alive.get("launch")))


def _watched(path: Path, first: Mapping[str, Any]) -> Glance:
    begin = time.monotonic()
    while (waited_s := time.monotonic() - begin) < owners.GLANCE_S:
        values = read_summary(path)
        if values.get("heartbeat") != first.get("heartbeat") and is_like(values, RunningSummary):
            return Glance(values, 0.0)
        time.sleep(POLL_S)
    return Glance(first, waited_s)


def live_rows(folder: OutputFolder, live: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of the replicas of all jobs that work on the folder; those of a part name it."""
    rows = []
    for path in [folder.summary, *sorted(folder.own.glob("summary-*-of-*.json"))]:
        values = read_summary(path)
        if any(is_of_launch(values, launch) for launch in live):
            shard = {"shard": values["launch"]["shard"]} if values["launch"].get("shard") else {}
            rows += [{**shard, **row} for row in rows_in(values)]
    return rows


def silent_rows(glance: Glance) -> list[dict[str, Any]]:
    """The rows of the replicas where rank 0 does not write any more. Of the others nobody knows
    when they last gave a sign."""
    rows = []
    for row in rows_in(glance.values):
        if 0 in row.get("ranks", ()):
            is_silent = glance.age_s > SILENT_AFTER_S
            row = {**row, "last_sign_s": round(glance.age_s, 1)}
            row["state"] = "silent" if is_silent else row.get("state")
        else:
            row = {**row, "last_sign_s": None}
        rows.append(row)
    return rows
