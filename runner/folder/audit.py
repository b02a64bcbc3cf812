"""Whether the files in a folder are those that the runner wrote for this plan. Only reads."""

from __future__ import annotations  # before Python 3.12, array[int] works in annotations alone

import itertools
import json
import os
import stat
import zlib
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pydantic_core

from runner.folder.done_images import Done
from runner.folder.merged_record import DONE, MergedRecord
from runner.folder.paths import OutputFolder
from runner.folder.png import call_in, read_text, whole
from runner.folder.reports import image_rows
from runner.folder.scan import scan
from runner.manifest.input_images import without_inputs
from runner.plan import Fingerprints, Plan, Task, canonical

__all__ = [
    "DELETE",
    "MOVE",
    "REGENERATE",
    "RUN",
    "Audit",
    "Fault",
    "audit_images",
    "audit_metadata",
    "audit_others",
]

LATER_KEYS = {"variation"}  # that the first version did not write
NOT_IN_IMAGES = {"seconds"}  # that only the journal knows
# What mends a fault, and makes the image anew where that is needed.
DELETE = "delete"  # the file: a run makes what is missing
REGENERATE = "regenerate"
MOVE = "move away"
RUN = "run"  # writes metadata.jsonl anew, too
NOT_A_FILE = "is a link, a folder or a pipe in place of the file"
AT_ONCE = 256  # images that are read before their faults are known
THREADS = min(8, os.cpu_count() or 1)


class Fault(NamedTuple):
    """A file that is not as it should be."""

    file: str
    what: str
    remedy: str = DELETE

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(slots=True)
class Audit:
    """What was found."""

    missing: int = 0  # images that nobody says are done
    good: array[int] = field(default_factory=lambda: array("Q"))  # indices
    faults: list[Fault] = field(default_factory=list)


class _Held(NamedTuple):
    """What a file holds: its texts, None where it is no whole PNG."""

    crc: int
    texts: Mapping[str, str] | None
    is_edited: bool = False
    is_file: bool = True

    @property
    def fingerprint(self) -> str:
        return (self.texts or {}).get("fingerprint", "")


def audit_images(
    folder: OutputFolder,
    plan: Plan,
    fingerprints: Fingerprints,
    record: MergedRecord,
    cause: str,
) -> Audit:
    """Read every image whole: its bytes by the journal, its pixels by their checksum, its texts and
    fingerprint by the plan. `cause` says why a fingerprint may be stale."""
    found = Audit()
    others: dict[int, str] = {}  # images that hold the fingerprint of another
    for task, held in _files(folder, plan):
        done, fingerprint = record.done.get(task.index), fingerprints.of(task)
        if held is None and done is None:
            found.missing += 1
        elif held and not held.is_edited and held.fingerprint not in ("", fingerprint):
            others[task.index] = held.fingerprint
        elif what := _fault(task, done, held):
            remedy = DELETE if held else RUN
            found.faults.append(Fault(folder.image_name(task), what, remedy))
        else:
            found.good.append(task.index)
    found.faults += _mixed_up(folder, plan, fingerprints, record, others, cause)
    found.faults.sort()
    return found


def _files(folder: OutputFolder, plan: Plan) -> Iterator[tuple[Task, _Held | None]]:
    """What the file of each image holds; None where there is no file."""
    tasks = plan.tasks()
    with ThreadPoolExecutor(THREADS) as pool:
        while some := [*itertools.islice(tasks, AT_ONCE)]:
            yield from zip(some, pool.map(_read, map(folder.image, some)), strict=True)


def _read(path: Path) -> _Held | None:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(mode):  # reading a FIFO would block
        return _Held(0, None, is_file=False)
    data = path.read_bytes()
    texts = whole(data)
    is_edited = texts is not None and "fingerprint" in texts[0] and not texts[1]
    return _Held(zlib.crc32(data), texts and texts[0], is_edited)


def _fault(task: Task, done: Done | None, held: _Held | None) -> str:
    """What is wrong with an image; "" where nothing is."""
    if held is None:
        return "is gone"
    if not held.is_file:
        return NOT_A_FILE
    if held.texts is None:
        return "is damaged: not a whole PNG"
    if not held.fingerprint:
        return "was not written by the runner, or another program saved it anew"
    if held.is_edited:
        return "its pixels were changed since it was made"
    if wrong := _wrong_texts(held.texts, task):
        return f"its texts were changed since it was made: {', '.join(wrong)}"
    if done is not None and done.crc != held.crc:
        return "its bytes are not those that the runner wrote"
    return ""


def _wrong_texts(texts: Mapping[str, str], task: Task) -> list[str]:
    """The names of texts that say something else than the plan."""
    said = {"prompt": task.prompt, "seed": str(task.seed)}
    wrong = [name for name, value in said.items() if texts.get(name) != value]
    try:
        call = canonical(without_inputs(json.loads(call_in(texts))))
    except (ValueError, RecursionError, AttributeError):
        call = ""
    # Input images count by their content, which the fingerprint has.
    return wrong if call == canonical(without_inputs(task.parameters)) else [*wrong, "call"]


def _mixed_up(
    folder: OutputFolder,
    plan: Plan,
    fingerprints: Fingerprints,
    record: MergedRecord,
    others: Mapping[int, str],
    cause: str,
) -> Iterator[Fault]:
    """Images that hold the fingerprint of another: swapped, or made otherwise."""
    wanted = set(others.values())
    homes = {
        held: task.index
        for task in plan.tasks()
        if wanted and (held := fingerprints.of(task)) in wanted
    }
    for index, held in others.items():
        done = record.done.get(index)
        name = folder.image_name(plan.task(index))
        if held in homes:
            yield Fault(name, f"holds the picture of image {homes[held]}")
        elif done is not None and done.fingerprint == held:
            yield Fault(name, f"was made otherwise: {cause}", REGENERATE)
        else:
            yield Fault(name, "holds the picture of another job")


def audit_others(folder: OutputFolder, plan: Plan) -> Iterator[Fault]:
    """Images of the runner that lie among those of the list, under names that no index has."""
    if folder.template is None:
        names = scan(folder, plan)
        for name in [*names.misplaced, *names.others]:
            path = folder.dir / name
            if stat.S_ISREG(path.lstat().st_mode) and "fingerprint" in (read_text(path) or {}):
                what = "was made by the runner, but is no image of the list"
                yield Fault(name, what, MOVE)


def audit_metadata(
    folder: OutputFolder, plan: Plan, record: MergedRecord, besides: Container[str]
) -> Iterator[Fault]:
    """What metadata.jsonl says that plan and journals do not, but for images in `besides`, whose
    files are wrong themselves."""
    name = folder.metadata.name
    states = bytearray(len(plan))
    for index in record.done:
        if index < len(plan):  # the list may have been longer
            states[index] = DONE
    may_move = {"model"} if plan.manifest.model.folder else set[str]()  # a local one's path
    rows = (
        row
        for row in image_rows(folder, plan, record, states)
        if row["file_name"] not in besides and row["index"] not in record.kept_out
    )
    try:
        with folder.metadata.open("rb") as lines:
            for what in _compared(lines, rows, besides, may_move):
                yield Fault(name, what, RUN)
    except FileNotFoundError:
        if record.done:
            yield Fault(name, "is gone", RUN)


def _compared(
    lines: Iterable[bytes],
    rows: Iterator[dict[str, Any]],
    besides: Container[str],
    may_move: Set[str],
) -> Iterator[str]:
    """Both are in the order of the images. The values of `may_move` may differ."""
    row = next(rows, None)
    for number, line in enumerate(lines, 1):
        held = _parsed(line)
        index, name = held.get("index"), held.get("file_name")
        if type(index) is not int or not isinstance(name, str):
            yield f"line {number} is damaged"
            continue
        while row is not None and row["index"] < index:
            yield f"lacks image {row['index']}"
            row = next(rows, None)
        if row is not None and row["index"] == index:
            if wrong := [key for key in _wrong_values(held, row) if key not in may_move]:
                yield f"line {number}, image {index}: changed: {', '.join(wrong)}"
            row = next(rows, None)
        elif name not in besides:
            yield f"line {number} is about image {index}, which is not there"
    for left in itertools.chain([row] if row else [], rows):
        yield f"lacks image {left['index']}"


def _parsed(line: bytes) -> dict[str, Any]:
    """The values of a line; {} for what is no object, or has a name twice."""
    try:
        values = json.loads(line, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("programs differ in which of two values they take")
    return values


def _wrong_values(held: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """The names of values that are not as they were written, or are gone."""
    written = json.loads(pydantic_core.to_json(row))
    added = [name for name in held if name in written or name not in NOT_IN_IMAGES]
    gone = [name for name in written if name not in held and name not in LATER_KEYS]
    return [name for name in added + gone if _json(held, name) != _json(written, name)]


def _json(values: Mapping[str, Any], name: str) -> str | None:
    """A value as text, which keeps 1 and true apart; None where it is missing."""
    return json.dumps(values[name], sort_keys=True) if name in values else None
