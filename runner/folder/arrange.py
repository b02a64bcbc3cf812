"""Rename finished images to their new places, where the list of prompts moved.

A process that is killed meanwhile loses nothing: each image has its old name, its new name, both,
or the name of one that is set aside, which has its fingerprint in it. The journal says first which
places change, so that nothing older is believed about them. The next start finds whatever is left
to move.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import FolderError
from runner.folder import files
from runner.folder.done_images import Done
from runner.folder.journal import Journal
from runner.folder.merged_record import MergedRecord
from runner.folder.moves import Step, in_order
from runner.folder.paths import OutputFolder
from runner.folder.survey import Survey, adopt
from runner.plan import Plan

__all__ = ["arrange"]


def arrange(
    folder: OutputFolder,
    plan: Plan,
    found: Survey,
    record: MergedRecord,
    journal: Journal,
    launch: str,
    check: Callable[[], None],
) -> None:
    """Do the moves that a survey found, and put them into the survey and the record. Images that
    nothing wants any more make room; `refuse` let them be there only where they may be removed.
    `check` is called before each move; it raises TakenOverError."""
    mover = _Mover(folder, plan, found, record, journal, launch)
    for place in found.twins:
        check()
        mover.path(place).unlink(missing_ok=True)
    for step in in_order(found.moves):
        check()
        mover.do(step)
    found.changed = [index for index in found.changed if not mover.is_filled(index)]
    found.damaged = [index for index in found.damaged if not mover.is_filled(index)]
    found.moves, found.twins = {}, []


@dataclass(slots=True)
class _Mover:
    folder: OutputFolder
    plan: Plan
    found: Survey
    record: MergedRecord
    journal: Journal
    launch: str
    aside: dict[int, tuple[Path, Done]] = field(default_factory=dict)
    removable: set[int] = field(init=False)  # places whose files make room
    filled: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.removable = {*self.found.changed, *self.found.damaged}

    def is_filled(self, place: int) -> bool:
        return place in self.filled

    def path(self, place: int) -> Path:
        path = self.found.paths.get(place)
        return path or self.folder.image(self.plan.task(place))

    def do(self, step: Step) -> None:
        source, done = self._image_at(step.source)
        if step.target is None:
            self.journal.moving(step.source)
            path = files.moving_path(source.parent, done.fingerprint)
            files.move(source, path, self.launch)
            self.aside[step.source] = path, done
            return
        target = self.path(step.target)
        self.journal.moving(*(place for place in step if place is not None and place >= 0))
        if step.target in self.removable:
            target.unlink(missing_ok=True)
        self.folder.make_folders(target)
        try:
            files.move(source, target, self.launch)
        except FileExistsError:
            raise FolderError(
                f"{target}: something put it there a moment ago; move it away, then run the same "
                f"command again"
            ) from None
        self.journal.done(step.target, done.fingerprint, done.size, done.crc, done.made)
        self._note(step.target, done)

    def _image_at(self, place: int) -> tuple[Path, Done]:
        """The file that is to be moved from a place, and what a journal says of it."""
        if place in self.aside:
            return self.aside.pop(place)
        path, fingerprint = self.path(place), self.found.spare[place].hex()
        done = self.record.done.get(place)
        is_known = done is not None and done.fingerprint == fingerprint
        if done is not None and is_known and done.size == path.stat().st_size:
            return path, done
        return path, adopt(path, fingerprint)

    def _note(self, target: int, done: Done) -> None:
        """An image that came to a place, in the record and in the survey."""
        self.filled.add(target)
        self.record.add_done(target, done._replace(generation=self.record.generation + 1))
        self.found.states[target] = self.record.state_of_done(target, self.plan)
