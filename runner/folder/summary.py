"""summary.json: how a job stands or ended; and the same in a line."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from runner.folder import files
from runner.folder.counts import Counts, Launch, Outcome, exit_code, is_over, outcome
from runner.folder.merged_record import Account, MergedRecord, ReplicaTimes
from runner.folder.paths import OutputFolder
from runner.units import counted, first_few

__all__ = [
    "GO_ON",
    "conclude",
    "last_launch",
    "read_summary",
    "sentence",
    "summarize",
    "truncation_notice",
    "write_summary",
]

GO_ON = "run the same command again to go on"
LAUNCH = TypeAdapter(Launch)


def summarize(now: Outcome, counts: Counts, launch: Launch, account: Account) -> dict[str, Any]:
    """The content of summary.json. Times and rates are null where the launch has none."""
    seconds = launch.seconds
    return {
        "outcome": now,
        "exit_code": int(exit_code(now)),
        "images": counts.total,
        "done": counts.done,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "missing": counts.total - counts.done - counts.failed - counts.skipped,
        "made": counts.made,
        "seconds": seconds,
        "images_per_second": round(counts.made / seconds, 3) if seconds else None,
        "launch": dataclasses.asdict(launch),
        "replicas": [_replica(times, seconds) for times in sorted(account.times)],
        "errors": account.errors,
    }


def _replica(times: ReplicaTimes, seconds: float | None) -> dict[str, Any]:
    """How a replica spent the launch: before it began to work, busy, and idle from then on."""
    idle_s = None if seconds is None else round(max(0.0, seconds - times.start_s - times.busy_s), 3)
    return {**msgspec.structs.asdict(times), "idle_s": idle_s}


def conclude(
    counts: Counts, launch: Launch, account: Account, max_failures: int | None
) -> dict[str, Any]:
    """The summary of a job on which nobody works any more."""
    gave_up = is_over(counts, account, max_failures)
    return summarize(outcome(counts, gave_up=gave_up), counts, launch, account)


def write_summary(
    folder: OutputFolder,
    summary: Mapping[str, Any],
    launch: str,
    check: Callable[[], None] = files.no_check,
) -> None:
    """Write summary.json. `check` is called before it gets its name."""
    data = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    files.replace(folder.summary, (data.encode(),), launch, check)


def read_summary(folder: OutputFolder) -> dict[str, Any]:
    """{} where there is no summary.json that can be read."""
    try:
        values = json.loads(folder.summary.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


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
    counts: Counts,
    folder: OutputFolder,
    remedy: str = GO_ON,
) -> str:
    """The summary in a line: also what is left of a part, where --limit or --shard asked for one,
    and a remedy where more is to be made."""
    images = counted(summary["images"], "image")
    parts = [f"{summary['outcome']}: {summary['done']} of {images} in {folder.dir}"]
    if summary["made"]:
        rate = f", {summary['images_per_second']:.2f} images/s" if summary["seconds"] else ""
        parts.append(f"{summary['made']} made now{rate}")
    if summary["failed"]:
        parts.append(f"{summary['failed']} failed, see {folder.failures.name}")
    if summary["skipped"]:
        parts.append(f"{summary['skipped']} skipped, see {folder.failures.name}")
    if summary["missing"]:
        parts.append(f"{summary['missing']} missing")
    if counts.left and counts.wanted < counts.total:
        parts.append(f"{counts.left} left of the {counts.wanted} asked for")
    if summary["outcome"] == "interrupted":
        parts.append(remedy)
    return "; ".join(parts)
