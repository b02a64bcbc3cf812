"""Journals → metadata.jsonl, failures.jsonl and summary.json, which say how the folder stands."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from runner.errors import ExitCode
from runner.folder import files
from runner.folder.journal import launch_of
from runner.folder.merged_record import DONE, FAILED, LEFT, SKIPPED, Account, Record, Work
from runner.folder.names import image_name
from runner.folder.paths import OutputFolder
from runner.plan import Plan
from runner.units import counted

__all__ = [
    "GO_ON",
    "Counts",
    "Launch",
    "Outcome",
    "count",
    "exit_code",
    "is_over",
    "last_launch",
    "outcome",
    "read_summary",
    "rebuild",
    "sentence",
    "summarize",
    "truncation_notice",
    "write_summary",
]

NAMED = 8  # indices in a notice
GO_ON = "run the same command again to go on"
Outcome = Literal["running", "complete", "failed", "interrupted", "limited"]


@dataclass(slots=True)
class Counts:
    """Where the images of a plan stand."""

    total: int
    done: int = 0
    failed: int = 0
    failed_now: int = 0  # of those failed, the ones of this launch, or of what came after it
    skipped: int = 0  # flagged, and the manifest says on_flagged: skip
    made: int = 0  # of those done, the ones of this launch
    asked: int = 0  # those that this launch was asked for
    left: int = 0  # of those asked for, not done
    left_failed: int = 0  # of those left, failed
    truncated: int = 0  # of those done, with a text that a tokenizer cut
    first_truncated: list[int] = field(default_factory=list)


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

    def made(self, journal: str, generation: int) -> bool:
        """Whether an image was in this launch; a sibling shard's may have the same generation, and
        what this one found made without a record has another."""
        return generation == self.generation and launch_of(journal) == self.id


LAUNCH = TypeAdapter(Launch)


def count(states: bytearray, record: Record, asked: bytearray, launch: Launch) -> Counts:
    """`states` as of a record or a survey; `asked` has one byte an image: 1 for those the launch
    was to make."""
    of_asked = collections.Counter(itertools.compress(states, asked))
    counts = Counts(
        total=len(states),
        done=states.count(DONE),
        failed=states.count(FAILED),
        skipped=states.count(SKIPPED),
        asked=of_asked.total(),
        left=of_asked[LEFT] + of_asked[FAILED],
        left_failed=of_asked[FAILED],
    )
    counts.failed_now = sum(
        states[index] == FAILED and failed.generation >= launch.generation
        for index, failed in record.failed.items()
    )
    for index, state in enumerate(states):
        if state == DONE:
            counts.made += launch.made(*record.done.source(index))
            if record.done.is_truncated(index):
                counts.truncated += 1
                counts.first_truncated += [index] if counts.truncated <= NAMED else []
    return counts


def is_over(counts: Counts, account: Account, max_failures: int | None) -> bool:
    """Whether the launch would make no more images, though some are left."""
    return account.gave_up or (max_failures is not None and counts.failed_now >= max_failures)


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
    folder: OutputFolder, plan: Plan, record: Record, states: bytearray, launch: str
) -> None:
    """Write metadata.jsonl and failures.jsonl anew, in index order, streaming."""
    files.replace(folder.metadata, _metadata(folder, plan, record, states), launch)
    if FAILED in states or SKIPPED in states:
        files.replace(folder.failures, _failures(plan, record, states), launch)
    else:
        folder.failures.unlink(missing_ok=True)


def _metadata(
    folder: OutputFolder, plan: Plan, record: Record, states: bytearray
) -> Iterator[bytes]:
    model = plan.manifest.model
    for task in plan.tasks():
        if states[task.index] == DONE:
            done = record.done[task.index]
            yield _line(
                {
                    "file_name": image_name(task.index, folder.images_per_folder),
                    "index": task.index,
                    "prompt_index": task.prompt_index,
                    "prompt": task.prompt,
                    "seed": task.seed,
                    "parameters": task.parameters,
                    "model": model.id,
                    "revision": model.revision,
                    **done.made,
                    "fingerprint": done.fingerprint,
                }
            )


def _failures(plan: Plan, record: Record, states: bytearray) -> Iterator[bytes]:
    for index, state in enumerate(states):
        if state in (FAILED, SKIPPED):
            failed = record.failed[index]
            fault = {"kind": failed.kind, "error": failed.error}
            yield _line({"index": index, "prompt": plan.task(index).prompt, **fault})


def _line(values: Mapping[str, Any]) -> bytes:
    return pydantic_core.to_json(values) + b"\n"


def summarize(outcome: Outcome, counts: Counts, launch: Launch, account: Account) -> dict[str, Any]:
    """What goes into summary.json; times and rates are open where the launch's are."""
    seconds = launch.seconds
    return {
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


def write_summary(folder: OutputFolder, summary: Mapping[str, Any], launch: str) -> None:
    data = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    files.replace(folder.summary, (data.encode(),), launch)


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


def last_launch(known: Mapping[str, Any], record: Record) -> Launch:
    """As the summary tells it; where that is lost, as the journals do."""
    try:
        return LAUNCH.validate_python(known.get("launch"))
    except ValidationError:
        return Launch(record.launch, record.generation)


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


def sentence(
    summary: Mapping[str, Any],
    counts: Counts,
    folder: OutputFolder,
    remedy: str = GO_ON,
) -> str:
    """The summary in one line, and what is left of a part, where a part was asked for; with a
    remedy where more is to be made."""
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
    if counts.left and counts.asked < counts.total:
        parts.append(f"{counts.left} left of the {counts.asked} asked for")
    if summary["outcome"] == "interrupted":
        parts.append(remedy)
    return "; ".join(parts)
