"""Journals → metadata.jsonl, failures.jsonl and summary.json, which say how the folder stands."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import collections
import dataclasses
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pydantic_core

from runner import files
from runner.errors import ExitCode
from runner.folder import OutputFolder
from runner.images import image_name
from runner.journal import launch_of
from runner.plan import Fingerprints, Plan, Task
from runner.record import Account, Done, Failed, Record, Work, is_skip
from runner.units import counted

__all__ = [
    "Counts",
    "Launch",
    "Outcome",
    "exit_code",
    "is_over",
    "outcome",
    "read_summary",
    "rebuild",
    "sentence",
    "truncation_notice",
    "write_summary",
]

NAMED = 8  # indices in a notice
Outcome = Literal["running", "complete", "failed", "interrupted", "limited"]


@dataclass(slots=True)
class Counts:
    """Where the images of a plan stand."""

    total: int
    done: int = 0
    failed: int = 0
    skipped: int = 0  # flagged, and the manifest says on_flagged: skip
    made: int = 0  # of those done, the ones of this launch
    left: int = 0  # of those that this launch was asked for, not done
    left_failed: int = 0  # of those left, failed
    truncated: int = 0  # of those done, with a text that a tokenizer cut
    first_truncated: list[int] = field(default_factory=list)

    def add_done(self, index: int, made: Mapping[str, Any], *, is_new: bool) -> None:
        self.done += 1
        self.made += is_new
        if "truncated" in made:
            self.truncated += 1
            self.first_truncated += [index] if self.truncated <= NAMED else []

    def add_left(self, failed: Failed | None, on_flagged: str, *, asked: bool) -> None:
        is_skipped = failed is not None and is_skip(failed, on_flagged)
        self.left += asked and not is_skipped
        if failed:
            self.skipped += is_skipped
            self.failed += not is_skipped
            self.left_failed += asked and not is_skipped


@dataclass(slots=True)
class Launch:
    """What of a launch goes into the summary."""

    id: str
    generation: int
    world_size: int = 1
    replicas: int = 1
    strategy: str = ""
    started: float = 0.0  # seconds since 1970
    choice: str = ""  # what `auto` chose and why
    batch_sizes: dict[str, int] = field(default_factory=dict)  # that `auto` found
    seconds: float | None = None  # to its end; unknown where it was killed

    def made(self, done: Done) -> bool:
        """Whether it was in this launch; a sibling shard's may have the same generation, and what
        this one found made without a record has another."""
        return done.generation == self.generation and launch_of(done.journal) == self.id


def is_over(counts: Counts, account: Account, max_failures: int | None) -> bool:
    """Whether the launch would make no more images, though some are left."""
    return account.gave_up or (max_failures is not None and counts.failed >= max_failures)


def outcome(counts: Counts, *, gave_up: bool = False) -> Outcome:
    """How it stands once nobody works any more; `gave_up`: over max_failures."""
    if counts.done + counts.skipped == counts.total:
        return "complete"
    if not counts.left:
        return "limited"
    return "failed" if gave_up or counts.left == counts.left_failed else "interrupted"


def exit_code(outcome: Outcome) -> ExitCode:
    if outcome in ("complete", "limited"):
        return ExitCode.COMPLETE
    return ExitCode.FAILED if outcome == "failed" else ExitCode.INCOMPLETE


def rebuild(
    folder: OutputFolder,
    plan: Plan,
    fingerprints: Fingerprints,
    record: Record,
    asked: bytearray,
    launch: Launch,
    *,
    dry: bool = False,
) -> Counts:
    """Write metadata.jsonl and failures.jsonl anew, in index order, streaming; count on the way.
    `dry`: only count.

    An image counts as done where a journal says so with the plan's fingerprint and its file has
    the size recorded. `asked` has one byte an image: 1 for those the launch was to make.
    """
    sizes = folder.scan(len(plan)).sizes
    counts, failing = Counts(len(plan)), array("Q")
    manifest, model = plan.manifest, plan.manifest.model

    def metadata() -> Iterator[bytes]:
        for task in plan.tasks():
            done, fingerprint = record.done.get(task.index), fingerprints.of(task)
            if done is not None and done[:2] == (fingerprint, sizes[task.index]):
                made = done.made
                counts.add_done(task.index, made, is_new=launch.made(done))
                name = image_name(task.index, folder.images_per_folder)
                common = {"model": model.id, "revision": model.revision}
                line = {"file_name": name, **_about(task), **common, **made}
                yield _line({**line, "fingerprint": fingerprint})
                continue
            failed = record.failed.get(task.index)
            if failed and failed.fingerprint != fingerprint:
                failed = None
            counts.add_left(failed, manifest.on_flagged, asked=bool(asked[task.index]))
            if failed:
                failing.append(task.index)

    def failures() -> Iterator[bytes]:
        for index in failing:
            failed = record.failed[index]
            fault = {"kind": failed.kind, "error": failed.error}
            yield _line({"index": index, "prompt": plan.task(index).prompt, **fault})

    if dry:
        collections.deque(metadata(), maxlen=0)
        return counts
    files.replace(folder.metadata, metadata(), launch.id)
    if failing:
        files.replace(folder.failures, failures(), launch.id)
    else:
        folder.failures.unlink(missing_ok=True)
    return counts


def _about(task: Task) -> dict[str, Any]:
    return {
        "index": task.index,
        "prompt_index": task.prompt_index,
        "prompt": task.prompt,
        "seed": task.seed,
        "parameters": dict(task.parameters),
    }


def _line(values: Mapping[str, Any]) -> bytes:
    return pydantic_core.to_json(values) + b"\n"


def write_summary(
    folder: OutputFolder,
    outcome: Outcome,
    counts: Counts,
    launch: Launch,
    account: Account,
    *,
    dry: bool = False,
) -> dict[str, Any]:
    """Write summary.json and return it; times and rates are open where the launch's are. `dry`:
    only return it."""
    seconds = launch.seconds
    summary = {
        "outcome": outcome,
        "exit_code": int(exit_code(outcome)),
        "images": counts.total,
        "done": counts.done,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "missing": counts.total - counts.done - counts.failed - counts.skipped,
        "made": counts.made,
        "seconds": seconds,
        "images_per_second": round(counts.made / seconds, 3) if seconds else None,
        "launch": dataclasses.asdict(launch),
        "replicas": [_replica(work, seconds) for work in sorted(account.work)],
        "errors": account.errors,
    }
    data = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    if not dry:
        files.replace(folder.summary, (data.encode(),), launch.id)
    return summary


def _replica(work: Work, seconds: float | None) -> dict[str, Any]:
    """How a replica spent the launch: until it began to work, busy, and idle from then to the
    launch's end."""
    idle_s = None if seconds is None else round(max(0.0, seconds - work.start_s - work.busy_s), 3)
    return {**work._asdict(), "idle_s": idle_s}


def read_summary(folder: OutputFolder) -> dict[str, Any]:
    try:
        values = json.loads(folder.summary.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def truncation_notice(counts: Counts) -> str:
    """Which images have a text that was cut, in a line; "" where there are none."""
    if not counts.truncated:
        return ""
    more = " …" if counts.truncated > NAMED else ""
    return (
        f"texts longer than a text encoder takes were cut in {counts.truncated} of the images "
        f"({', '.join(map(str, counts.first_truncated))}{more}); `truncated` in metadata.jsonl "
        f"says what was dropped"
    )


def sentence(summary: Mapping[str, Any], folder: OutputFolder) -> str:
    """The summary in one line."""
    parts = [f"{summary['outcome']}: {summary['done']} of {counted(summary['images'], 'image')}"]
    parts[0] += f" in {folder.dir}"
    if summary["made"]:
        rate = f", {summary['images_per_second']:.2f} images/s" if summary["seconds"] else ""
        parts.append(f"{summary['made']} made now{rate}")
    if summary["failed"]:
        parts.append(f"{summary['failed']} failed, see {folder.failures.name}")
    if summary["skipped"]:
        parts.append(f"{summary['skipped']} skipped, see {folder.failures.name}")
    if summary["missing"]:
        parts.append(f"{summary['missing']} missing")
    if summary["outcome"] == "interrupted":
        parts.append("run the same command again to go on")
    return "; ".join(parts)
