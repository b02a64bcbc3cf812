"""What is there already, what is to do, and what stands in the way: the survey before the work."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import json
import zlib
from array import array
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import FolderError
from runner.folder.journal import Journal, launch_of
from runner.folder.lock import live_launches
from runner.folder.merged_record import DONE, FAILED, LEFT, Done, Record
from runner.folder.paths import ABSENT, NO_FILE, OutputFolder
from runner.folder.png import read_text
from runner.launch.shards import Shard
from runner.plan import Fingerprints, Plan

__all__ = [
    "Survey",
    "asked_images",
    "clear",
    "named",
    "pending_batches",
    "refuse",
    "refuse_to_draw",
    "survey",
]

MUST_BE_MADE = bytes(state in (LEFT, FAILED) for state in range(256))  # by state
PNG_START = b"\x89PNG\r\n\x1a\n"
NAMED = 8  # indices named in an error


@dataclass(slots=True)
class Survey:
    """How every image of the plan stands, and what must be made; the lists name why, for those of
    interest."""

    states: bytearray  # one byte an image: see record.py
    todo: bytearray  # one byte an image: 1 where it must be made
    changed: list[int] = field(default_factory=list)  # whole, but of another fingerprint
    cause: str = "the manifest changed since"  # of that
    damaged: list[int] = field(default_factory=list)  # ours, but not whole
    adopted: dict[int, Done] = field(default_factory=dict)  # whole, but not in a journal
    foreign: list[Path] = field(default_factory=list)
    beyond: list[Path] = field(default_factory=list)  # ours, past the end of the list
    misplaced: Path | None = None  # one of ours, where another images_per_folder puts it
    temporaries: list[tuple[Path, str]] = field(default_factory=list)  # and who wrote them

    @property
    def finished(self) -> int:
        return self.states.count(DONE)


def survey(
    folder: OutputFolder,
    plan: Plan,
    fingerprints: Fingerprints,
    record: Record,
    live: set[str],
) -> Survey:
    """Compare the plan with the folder. Reads; changes nothing.

    A file is taken as whole by its size; where its journal ended without its last line, by its
    bytes. `live` are launches of sibling shards, whose journals are still being written.
    """
    scan = folder.scan(len(plan))
    states = record.states(plan, fingerprints, scan.sizes)
    found = Survey(states, states.translate(MUST_BE_MADE), temporaries=scan.temporaries)
    suspect = {name for name in record.unclean if launch_of(name) not in live}
    for index, size in enumerate(scan.sizes):
        is_done = states[index] == DONE
        if size == ABSENT or (is_done and record.done.source(index)[0] not in suspect):
            continue  # as nearly all are: no file is opened
        path, done = folder.image(index), record.done.get(index)
        in_journal = done is not None and _is_whole(path, size, done, suspect)
        if is_done:
            if in_journal:
                continue
            states[index] = LEFT  # its bytes are not those that were written
        fingerprint = fingerprints.of(plan.task(index))
        held = done.fingerprint if done is not None and in_journal else _fingerprint_in(path, size)
        if held == fingerprint:
            found.adopted[index] = _adopt(path, fingerprint)
            states[index], found.todo[index] = DONE, 0
            continue
        found.todo[index] = 1
        if held:
            found.changed.append(index)
        elif held is None and done is not None and _is_broken(path, size, done):
            found.damaged.append(index)
        else:
            found.foreign.append(path)
    found.beyond = [
        folder.image(index)
        for index, size in sorted(scan.beyond.items())
        if _fingerprint_in(folder.image(index), size)
    ]
    elsewhere = (folder.dir / name for name in sorted(scan.misplaced))
    found.misplaced = next(filter(_is_ours, elsewhere), None)
    return found


def _is_ours(path: Path) -> bool:
    """Whether a PNG carries our words. Its pixels are not read."""
    return path.is_file() and "fingerprint" in (read_text(path) or {})


def refuse(folder: OutputFolder, found: Survey, *, regenerate: bool) -> None:
    """Raises FolderError for files that the runner did not write, for images that another
    images_per_folder placed and, unless `regenerate`, for finished images that the manifest no
    longer describes."""
    if found.misplaced:
        raise FolderError(
            f"{folder.dir} has images placed with another images_per_folder than the manifest's "
            f"{folder.images_per_folder or 'null'} ({found.misplaced.relative_to(folder.dir)}); "
            f"keep that one, or use another folder: --output DIR"
        )
    if found.foreign:
        raise FolderError(
            f"{named(path.name for path in found.foreign)} in {folder.dir}: not written by the "
            f"runner; move them away, or use another folder: --output DIR"
        )
    reasons = []
    if found.changed:
        reasons.append(f"{named(map(str, found.changed))}: {found.cause}")
    if found.beyond:
        reasons.append(f"{named(path.name for path in found.beyond)}: beyond the end of the list")
    if reasons and not regenerate:
        raise FolderError(
            f"{folder.dir} has finished images that this manifest would not make "
            f"({'; '.join(reasons)}); remake or remove just those with --regenerate, or use "
            f"another folder: --output DIR"
        )


def refuse_to_draw(folder: OutputFolder, plan: Plan) -> None:
    """Raises FolderError where no seed is recorded, but images of one that was drawn are there: a
    new one would make all of them look changed."""
    sizes = folder.scan(len(plan)).sizes if folder.dir.is_dir() else ()
    for index, size in enumerate(sizes):
        if size <= 0 or plan.prompts[plan.task(index).prompt_index].seed is not None:
            continue
        text = read_text(folder.image(index)) or {}
        seed = text.get("seed", "")[:20]  # no seed has more digits
        if "fingerprint" in text and seed.isdecimal() and int(seed) >= index:
            raise FolderError(
                f"{folder.manifest}, which records the seed, is gone, and images are there; go on "
                f"with the seed that {folder.image(index).name} tells of, --set "
                f"seed={int(seed) - index}, or use another folder: --output DIR"
            )


def clear(
    folder: OutputFolder,
    found: Survey,
    journal: Journal,
    record: Record,
    live: set[str],
    asked: bytearray,
) -> None:
    """Remove what is beyond the list, or broken and asked for, and record what the survey learned.
    Changed images stay until their new ones replace them."""
    for path in found.beyond:
        path.unlink(missing_ok=True)
    for index in filter(asked.__getitem__, found.damaged):
        folder.image(index).unlink(missing_ok=True)
    for index, done in found.adopted.items():
        journal.done(index, done.fingerprint, done.size, done.crc, done.made)
    # First the files, then who lives: a launch holds its lock before it writes.
    live = live | live_launches(folder)
    for path, launch in found.temporaries:
        if launch not in live:
            path.unlink(missing_ok=True)
    verified = {name for name in record.unclean if launch_of(name) not in live}
    if verified and all(map(asked.__getitem__, found.damaged)):
        journal.verified(sorted(verified))
        record.unclean -= verified


def asked_images(plan: Plan, limit: int | None, shard: Shard | None) -> bytearray:
    """One byte an image: 1 for those that --limit and --shard leave to this launch."""
    if shard is None:
        asked = bytearray(b"\x01") * len(plan)
    else:
        asked = bytearray(len(plan))
        for number in range(shard[0] - 1, plan.batch_count, shard[1]):
            for index in plan.batch(number):
                asked[index] = 1
    if limit is not None and limit < len(plan):
        asked[limit:] = bytes(len(plan) - limit)
    return asked


def pending_batches(
    plan: Plan, todo: bytearray, asked: bytearray, last: Container[int] = ()
) -> array[int]:
    """The batches with an image that is asked for and must be made; those with an image in `last`
    come after all others."""
    first, after = array("Q"), array("Q")
    for number in range(plan.batch_count):
        indices = plan.batch(number)
        if any(todo[index] and asked[index] for index in indices):
            (after if any(index in last for index in indices) else first).append(number)
    return first + after


def _is_whole(path: Path, size: int, done: Done, suspect: set[str]) -> bool:
    if size != done.size:
        return False
    return done.journal not in suspect or zlib.crc32(path.read_bytes()) == done.crc


def _is_broken(path: Path, size: int, done: Done) -> bool:
    """Whether a file that cannot be read is what became of our image: empty, or cut, or with our
    words before its broken pixels. Anything else somebody put there."""
    if size == 0:
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return head.startswith(PNG_START[: len(head)]) and (size < done.size or b"fingerprint" in head)


def _fingerprint_in(path: Path, size: int) -> str | None:
    """The fingerprint that a whole image carries; "" where it carries none of its pixels, None
    where it is no whole image. A link is none of ours."""
    if size == NO_FILE:
        return ""
    text = read_text(path, whole=True) if size else None
    if text is None:
        path.open("rb").close()  # raises PermissionError, where that was the reason
    return text.get("fingerprint", "") if text is not None else None


def _adopt(path: Path, fingerprint: str) -> Done:
    """The record of an image whose journal line was lost: the image tells."""
    data = path.read_bytes()
    try:
        made = dict(json.loads((read_text(path) or {}).get("made", "{}")))
    except (ValueError, TypeError, RecursionError):
        made = {}
    return Done(fingerprint, len(data), zlib.crc32(data), made, "", -1)


def named(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    known = list(names)
    more = f" … {len(known) - NAMED} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + more
