"""The survey before the work: which images are there, and which must be made."""

from __future__ import annotations  # before Python 3.12, array[int] works in annotations alone

import re
import zlib
from array import array
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from runner.folder.done_images import Done
from runner.folder.journal import journal_launch
from runner.folder.merged_record import DONE, FAILED, LEFT, SKIPPED, Failed, MergedRecord
from runner.folder.moves import match
from runner.folder.paths import OutputFolder
from runner.folder.png import read_text
from runner.folder.scan import ABSENT, NO_FILE, Scan, scan
from runner.plan import Fingerprints, Plan

__all__ = ["Survey", "adopt", "pending_batches", "survey"]

MUST_BE_MADE = bytes(state in (LEFT, FAILED) for state in range(256))  # by state
PNG_START = b"\x89PNG\r\n\x1a\n"
# What stands before it in an uncompressed iTXt chunk, as png.py writes it.
TEXT_OF_FINGERPRINT = b"fingerprint" + bytes(5)
MADE = msgspec.json.Decoder(dict[str, Any])


@dataclass(slots=True)
class Survey:
    """The state of every image of the plan, and the images and files that need attention."""

    states: bytearray  # one byte an image: see merged_record.py
    todo: bytearray  # one byte an image: 1 where it must be made
    changed: list[int] = field(default_factory=list)  # whole, with a fingerprint nobody wants
    cause: str = "the manifest changed since"  # of that, where the images do not show it
    reasons: list[str] = field(default_factory=list)  # why they fit nothing: differences.py
    damaged: list[int] = field(default_factory=list)  # written by the runner, but not whole
    adopted: dict[int, Done] = field(default_factory=dict)  # whole, but in no journal
    foreign: list[Path] = field(default_factory=list)  # not written by the runner
    beyond: list[Path] = field(default_factory=list)  # the same past the plan's end
    misplaced: Path | None = None  # one that another images_per_folder put elsewhere
    renamed: str = ""  # the output.name of the images that are there, where it is another
    temporaries: list[tuple[Path, str]] = field(default_factory=list)  # and who writes them
    # Whole images that do not fit where they are: place → fingerprint. See moves.py.
    spare: dict[int, bytes] = field(default_factory=dict)
    paths: dict[int, Path] = field(default_factory=dict)  # of those at no place of the plan
    moves: dict[int, int] = field(default_factory=dict)  # source → target
    twins: list[int] = field(default_factory=list)  # a second name of a file that has its place
    skipped: dict[int, Failed] = field(default_factory=dict)  # at another place of the list before

    @property
    def unfit(self) -> int:
        """Whole images that nothing wants any more."""
        return len(self.changed) + len(self.beyond)

    @property
    def finished(self) -> int:
        """Images that are there, at their places or to be moved there."""
        return self.states.count(DONE) + len(self.moves)


def survey(
    folder: OutputFolder,
    plan: Plan,
    fingerprints: Fingerprints,
    record: MergedRecord,
    live: set[str],
    *,
    has_new_names: bool = False,
) -> Survey:
    """Compare the plan with the folder. Only reads.

    A file of the right size counts as whole. Where its journal ended without the last line, its
    bytes are compared, too. `live` are the launches of sibling shards, who still write journals.
    An image that does not fit its place is not taken for what the journals say of the place; where
    the list has new names, no image is.
    """
    files = scan(folder, plan)
    states = record.states(plan, fingerprints, files.sizes)
    found = Survey(states, states.translate(MUST_BE_MADE), temporaries=files.temporaries)
    suspect = {name for name in record.unclean if journal_launch(name) not in live}
    # Under a name of its author's own an image stays where it is when its index changes.
    elsewhere = record.done.by_fingerprint() if has_new_names else {}
    for index in record.kept_out:
        found.todo[index] = 0
    for index, size in enumerate(files.sizes):
        if index in record.kept_out:
            continue
        is_done = states[index] == DONE
        if is_done and has_new_names and not _carries_its_own(folder, plan, fingerprints, index):
            is_done, states[index] = False, LEFT
        if size == ABSENT or (is_done and record.done.source(index)[0] not in suspect):
            continue  # nearly all images: no file is opened
        task, done = plan.task(index), record.done.get(index)
        path, fingerprint = folder.image(task), fingerprints.of(task)
        if done is None or done.fingerprint != fingerprint:
            done = record.done.get(elsewhere.get(bytes.fromhex(fingerprint), -1), done)
        _examine(found, index, path, size, done, fingerprint, suspect)
    _look_elsewhere(found, files, record, suspect)
    _find_moves(found, files, plan, fingerprints, record)
    misplaced = (folder.dir / name for name in sorted(files.misplaced))
    found.misplaced = next(filter(_is_from_runner, misplaced), None)
    return found


def _carries_its_own(
    folder: OutputFolder, plan: Plan, fingerprints: Fingerprints, index: int
) -> bool:
    task = plan.task(index)
    return _carries(folder.image(task), fingerprints.of(task))


def _look_elsewhere(found: Survey, files: Scan, record: MergedRecord, suspect: set[str]) -> None:
    """Images past the plan's end, and those that a killed launch had set aside."""
    for index in sorted(files.beyond):
        path, size = files.beyond[index]
        if held := _held(path, size, record.done.get(index), suspect):
            found.spare[index], found.paths[index] = bytes.fromhex(held), path
    for number, (path, fingerprint) in enumerate(files.moving, 1):
        if _carries(path, fingerprint):
            found.spare[-number], found.paths[-number] = bytes.fromhex(fingerprint), path


def _find_moves(
    found: Survey, files: Scan, plan: Plan, fingerprints: Fingerprints, record: MergedRecord
) -> None:
    """Sort the spare images: those that are wanted elsewhere, and those that nobody wants."""
    for places in files.links.values():
        # Two names for one file: a process was killed while it moved it.
        spare = [place for place in places if place in found.spare]
        has_place = len(spare) < len(places)
        found.twins += spare if has_place else spare[1:]
    for place in found.twins:
        del found.spare[place]
    found.moves = match(found.spare, plan, fingerprints, found.todo)
    for target in found.moves.values():
        found.todo[target] = 0
    left = [place for place in found.spare if place not in found.moves]
    found.changed = [place for place in left if place not in found.paths]
    found.beyond = [found.paths[place] for place in left if place in found.paths]
    if plan.manifest.on_flagged == "skip":
        _find_skipped(found, plan, fingerprints, record)


def _find_skipped(
    found: Survey, plan: Plan, fingerprints: Fingerprints, record: MergedRecord
) -> None:
    """Images that were left out on purpose when they had another place in the list."""
    skipped = {f.fingerprint: f for f in record.failed.values() if f.kind == "skipped"}
    for task in plan.tasks() if skipped else ():
        if found.todo[task.index] and (failed := skipped.get(fingerprints.of(task))):
            found.skipped[task.index] = failed
            record.add_failed(task.index, failed)
            found.states[task.index], found.todo[task.index] = SKIPPED, 0


def pending_batches(
    plan: Plan, todo: bytearray, wanted: bytearray, last: Container[int] = ()
) -> array[int]:
    """The batches with an image that is wanted and must be made; those with an image in `last`
    come after all others."""
    first, after = array("Q"), array("Q")
    for number in range(plan.batch_count):
        indices = plan.batch(number)
        if any(todo[index] and wanted[index] for index in indices):
            (after if any(index in last for index in indices) else first).append(number)
    return first + after


def _examine(
    found: Survey,
    index: int,
    path: Path,
    size: int,
    done: Done | None,
    fingerprint: str,
    suspect: set[str],
) -> None:
    """Look into the file that has an image's name, and put what it is into the survey. `done` is
    what the journals say, `fingerprint` what the plan says."""
    is_as_recorded = done is not None and _is_as_recorded(path, size, done, suspect)
    if is_as_recorded and found.states[index] == DONE:
        return
    held = _held(path, size, done, suspect)
    if held == fingerprint:
        is_known = done is not None and is_as_recorded and done.fingerprint == fingerprint
        found.adopted[index] = done if done and is_known else adopt(path, fingerprint)
        found.states[index], found.todo[index] = DONE, 0
        return
    if found.states[index] == DONE:
        found.states[index] = LEFT  # its bytes are not those that were written
    found.todo[index] = 1
    if held:
        found.spare[index] = bytes.fromhex(held)
    elif held is None and done is not None and _is_damaged(path, size, done):
        found.damaged.append(index)
    else:
        found.foreign.append(path)


def _held(path: Path, size: int, done: Done | None, suspect: set[str]) -> str | None:
    """As `_fingerprint_in`; the pixels of an image that is as recorded are not read."""
    is_as_recorded = done is not None and _is_as_recorded(path, size, done, suspect)
    if done is not None and is_as_recorded and _carries(path, done.fingerprint):
        return done.fingerprint
    return _fingerprint_in(path, size)


def _carries(path: Path, fingerprint: str) -> bool:
    """Whether a PNG has this fingerprint in its text, as far as a glance shows."""
    with path.open("rb") as file:
        return TEXT_OF_FINGERPRINT + fingerprint.encode() in file.read(1 << 16)


def _is_as_recorded(path: Path, size: int, done: Done, suspect: set[str]) -> bool:
    if size != done.size:
        return False
    return done.journal not in suspect or zlib.crc32(path.read_bytes()) == done.crc


def _is_damaged(path: Path, size: int, done: Done) -> bool:
    """Whether a file that cannot be read was our image: it is empty or cut, or it has our text
    before broken pixels. Any other file is somebody else's."""
    if size == 0:
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return head.startswith(PNG_START[: len(head)]) and (size < done.size or b"fingerprint" in head)


def _fingerprint_in(path: Path, size: int) -> str | None:
    """The fingerprint in a whole image; "" where it has none for its pixels, or is a link; None for
    a file that is not a whole image."""
    if size == NO_FILE:
        return ""
    text = read_text(path, is_whole=True) if size else None
    if text is None:
        path.open("rb").close()  # raises PermissionError, where that was the reason
    return _hexadecimal(text.get("fingerprint", "")) if text is not None else None


def _hexadecimal(text: str) -> str:
    """A fingerprint; "" for anything else."""
    return text if re.fullmatch("[0-9a-f]{32}", text) else ""


def _is_from_runner(path: Path) -> bool:
    """Whether a PNG has the runner's text. Its pixels are not read."""
    return path.is_file() and "fingerprint" in (read_text(path) or {})


def adopt(path: Path, fingerprint: str) -> Done:
    """What a journal would say about an image whose line was lost, from the image itself."""
    data = path.read_bytes()
    try:
        made = MADE.decode((read_text(path) or {}).get("made", "{}"))
    except (ValueError, RecursionError):
        made = {}
    return Done(fingerprint, len(data), zlib.crc32(data), made, "", -1)
