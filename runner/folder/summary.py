"""summary.json: how a job stands or ended; and the same in a line.

While a job works, rank 0 writes it again every few seconds (monitor.py). docs/monitoring.md
explains its keys.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
from pydantic import TypeAdapter, ValidationError

from runner.folder import files
from runner.folder.accounting import accounting
from runner.folder.counts import Counts, Launch, Outcome, exit_code, is_over, outcome
from runner.folder.merged_record import Account, MergedRecord
from runner.folder.paths import OutputFolder
from runner.launch.heartbeat import Seen
from runner.launch.pulse import Pulse
from runner.units import counted, duration, first_few, one_line

__all__ = [
    "GO_ON",
    "Live",
    "ReplicaRow",
    "TimelineRows",
    "conclude",
    "is_like",
    "is_of_launch",
    "last_launch",
    "live_summary",
    "read_summary",
    "replica_rows",
    "rows_in",
    "sentence",
    "summarize",
    "truncation_notice",
    "write_summary",
]

GO_ON = "run the same command again to go on"
SILENT_AFTER_S = 20.0  # without a heartbeat: slow disks and long imports can cost some seconds
LAUNCH = TypeAdapter(Launch)


class ReplicaRow(TypedDict):
    """A row of `replicas`."""

    replica: int
    ranks: list[int]
    host: str
    device: str
    devices: int
    memory_peak: int
    images: int
    failed: int
    images_per_second: float | None
    start_s: float
    busy_s: float
    idle_s: float | None
    state: str
    last_sign_s: float | None
    shard: NotRequired[str]


class ReplicaTimes(TypedDict):
    replica: int
    busy_s: list[float]
    images: list[int]


class TimelineRows(TypedDict):
    """What Timeline.as_json writes."""

    span_s: float
    replicas: list[ReplicaTimes]


@dataclass(frozen=True, slots=True)
class Live:
    """What rank 0 sees of a launch that works."""

    per_second: float  # images, without the start of the launch
    left_s: float | None  # until the end
    replicas: Sequence[Mapping[str, Any]]
    timeline: Mapping[str, Any]
    accounting: Mapping[str, Any]
    heartbeat: Mapping[str, Any]  # changes each time


def live_summary(counts: Counts, launch: Launch, live: Live) -> dict[str, Any]:
    """The content of summary.json while the launch works."""
    return {
        **_counted("running", counts, launch),
        "flagged": None,  # known at the end
        "current_images_per_second": round(live.per_second, 4) or None,
        "left_s": None if live.left_s is None else round(live.left_s, 1),
        "launch": dataclasses.asdict(launch),
        "replicas": live.replicas,
        "timeline": live.timeline,
        "accounting": live.accounting,
        "errors": [],
        "first_error": None,  # known at the end
        "heartbeat": live.heartbeat,
    }


def summarize(
    now: Outcome, counts: Counts, launch: Launch, record: MergedRecord, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of summary.json from what the journals say. Times and rates are null where the
    launch has none. `known` is the last summary, which knows more of the same launch."""
    account = record.account(launch.id)
    if not is_of_launch(known, launch.id):
        known = {}
    timeline = known.get("timeline")
    return {
        **_counted(now, counts, launch),
        "current_images_per_second": None,
        "left_s": None,
        "launch": dataclasses.asdict(launch),
        "replicas": _ended_replicas(account.pulses, known, launch.seconds),
        "timeline": timeline if is_like(timeline, TimelineRows) else None,
        "accounting": accounting(record.spent.values()),
        "errors": account.errors,
        "first_error": _first_error(account, launch),
        "heartbeat": None,
    }


def _first_error(account: Account, launch: Launch) -> dict[str, Any] | None:
    """The first error with a traceback; `log` is the file that has what came before it."""
    first = account.first
    if first is None:
        return None
    shard = f"-{launch.shard.replace('/', '-of-')}" if launch.shard else ""
    return {
        "rank": first.rank,
        "error": first.error,
        "traceback": first.trace,
        "log": f".runner/logs/rank-{first.rank:05d}{shard}.log",
    }


def _counted(now: Outcome, counts: Counts, launch: Launch) -> dict[str, Any]:
    seconds = launch.seconds
    return {
        "outcome": now,
        "exit_code": int(exit_code(now)),
        "images": counts.total,
        "done": counts.done,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "flagged": len(counts.flagged),
        "missing": counts.total - counts.done - counts.failed - counts.skipped,
        "made": counts.made,
        "seconds": seconds,
        "images_per_second": round(counts.made / seconds, 3) if seconds else None,
    }


def replica_rows(seen: Iterable[Seen], seconds: float | None) -> list[dict[str, Any]]:
    """A row for each replica. One of several ranks is as silent as the most silent of them."""
    rows = []
    ordered = sorted(seen, key=lambda one: (one.pulse.replica, one.pulse.rank))
    for _, group in groupby(ordered, key=lambda one: one.pulse.replica):
        ranks = list(group)
        row = _row([one.pulse for one in ranks], seconds)
        silent_s = max(0.0 if one.has_ended else one.silent_s for one in ranks)
        states = {"ended" if one.has_ended else one.pulse.state for one in ranks}
        state = next((word for word in ("busy", "loading", "idle") if word in states), "starting")
        if silent_s > SILENT_AFTER_S:
            state = "silent"
        elif states == {"ended"}:
            state = "ended"
        rows.append({**row, "state": state, "last_sign_s": round(silent_s, 1)})
    return rows


def _ended_replicas(
    pulses: Sequence[Pulse], known: Mapping[str, Any], seconds: float | None
) -> list[dict[str, Any]]:
    """The same at the end. Of a replica that recorded nothing, what was last seen: it had nothing
    to do, or was killed."""
    rows = {
        row["replica"]: {**row, "state": "ended" if row.get("state") == "ended" else "lost"}
        for row in rows_in(known)
    }
    ordered = sorted(pulses, key=lambda pulse: (pulse.replica, pulse.rank))
    for replica, group in groupby(ordered, key=lambda pulse: pulse.replica):
        rows[replica] = {**_row(list(group), seconds), "state": "ended", "last_sign_s": None}
    return [row for _, row in sorted(rows.items())]


def rows_in(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the replicas in a summary, which somebody may have edited, or another version of
    the runner written."""
    rows = summary.get("replicas")
    of_any = rows if isinstance(rows, list) else []
    return [row for row in of_any if is_like(row, ReplicaRow)]


def is_like(value: Any, kind: Any) -> bool:
    """Whether a value from a file has this type."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _row(pulses: Sequence[Pulse], seconds: float | None) -> dict[str, Any]:
    """What the ranks of a replica did: before it began to work, busy, and idle from then on."""
    lead = max(pulses, key=lambda pulse: pulse.images)
    idle_s = max(0.0, seconds - lead.start_s - lead.busy_s) if seconds and lead.start_s else 0.0
    return {
        "replica": lead.replica,
        "ranks": [pulse.rank for pulse in pulses],
        "host": lead.host,
        "device": lead.device,
        "devices": sum(pulse.devices for pulse in pulses),
        "memory_peak": max(pulse.memory_peak for pulse in pulses),
        "images": lead.images,
        "failed": sum(pulse.failed for pulse in pulses),
        "images_per_second": round(lead.images / lead.busy_s, 4) if lead.busy_s else None,
        "start_s": lead.start_s,
        "busy_s": lead.busy_s,
        "idle_s": None if seconds is None else round(idle_s, 3),
    }


def conclude(
    counts: Counts,
    launch: Launch,
    record: MergedRecord,
    max_failures: int | None,
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """The summary of a job on which nobody works any more."""
    gave_up = is_over(counts, record.account(launch.id), max_failures)
    return summarize(outcome(counts, gave_up=gave_up), counts, launch, record, known)


def write_summary(
    path: Path,
    summary: Mapping[str, Any],
    launch: str,
    check: Callable[[], None] = files.no_check,
) -> None:
    """Write summary.json, or one of a part. `check` is called before it gets its name."""
    data = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    files.replace(path, (data.encode(),), launch, check)


def read_summary(path: Path) -> dict[str, Any]:
    """{} where there is no summary.json that can be read."""
    try:
        values = json.loads(path.read_bytes()) if path.is_file() else {}  # a FIFO would block
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def is_of_launch(summary: Mapping[str, Any], launch: str) -> bool:
    about = summary.get("launch")
    return isinstance(about, dict) and about.get("id") == launch


def last_launch(known: Mapping[str, Any], record: MergedRecord) -> Launch:
    """The last launch from the summary, or what the journals say about it."""
    try:
        return LAUNCH.validate_python(known.get("launch"))
    except ValidationError:
        return Launch(record.launch, record.generation)


def truncation_notice(counts: Counts) -> str:
    """Which images have a text that a tokenizer cut, in a line; "" where there are none."""
    if not counts.truncated:
        return ""
    return (
        f"texts longer than a text encoder takes were cut in {len(counts.truncated)} of the images "
        f"({first_few(counts.truncated)}); `truncated` in metadata.jsonl says what was dropped"
    )


def sentence(
    summary: Mapping[str, Any],
    folder: OutputFolder,
    counts: Counts | None = None,
    remedy: str = "",
    made: str = "made now",
    gone: int = 0,
) -> str:
    """The summary in a line: also what is left of a part, where --limit or --shard asked for one,
    and what to do where more is to be made. `gone` of the missing images were there before; where
    all were, nothing was interrupted."""
    images = counted(summary["images"], "image")
    head = "incomplete" if gone and gone == summary["missing"] else summary["outcome"]
    parts = [f"{head}: {summary['done']} of {images} in {folder.dir}"]
    if summary["made"] and not gone:
        per_second = summary["images_per_second"]
        rate = "" if per_second is None else f", {per_second:.2f} images/s"
        parts.append(f"{summary['made']} {made}{rate}")
    see = "" if summary["outcome"] == "running" else f", see {folder.failures.name}"
    parts += [f"{summary[key]} {key}{see}" for key in ("failed", "skipped") if summary[key]]
    if counts and counts.flagged:
        parts.append(f"{len(counts.flagged)} flagged ({first_few(counts.flagged)})")
    if counts and counts.left and counts.wanted < counts.total:
        parts.append(f"{counts.left} missing of the {counts.wanted} asked for")
    elif summary["missing"]:
        parts.append(f"{summary['missing']} missing")
    if gone:
        parts.append(f"{gone} made before and gone since")
    if summary["first_error"]:
        parts.append(f"the first error is in {folder.dir / summary['first_error']['log']}")
    if summary["left_s"]:
        parts.append(f"about {duration(summary['left_s'])} left")
    if summary["outcome"] == "interrupted":
        remedy = remedy or GO_ON
    if remedy:
        parts.append(remedy)
    return one_line("; ".join(parts))
