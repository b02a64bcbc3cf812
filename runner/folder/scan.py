"""One pass over the output folder: which files lie there, and how large they are."""

from __future__ import annotations  # before Python 3.12, array[int] works in annotations alone

import contextlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.folder import files
from runner.folder.names import check_names, image_index, is_folder_name, name_key
from runner.folder.paths import OutputFolder
from runner.manifest.name_template import NameTemplate
from runner.plan import Plan

__all__ = ["ABSENT", "NO_FILE", "Scan", "scan"]

# In place of a size. NO_FILE: a link, a folder or a FIFO has the name.
ABSENT, NO_FILE = -1, -2


@dataclass(slots=True)
class Scan:
    """What lies in an output folder, for a plan of so many images."""

    sizes: array[int]  # bytes, by index
    beyond: dict[int, tuple[Path, int]] = field(default_factory=dict)  # past the end of the plan
    misplaced: list[str] = field(default_factory=list)  # where another images_per_folder puts them
    others: list[str] = field(default_factory=list)  # with a name that no index has
    temporaries: list[tuple[Path, str]] = field(default_factory=list)  # and who writes them
    moving: list[tuple[Path, str]] = field(default_factory=list)  # on their way, and fingerprints
    links: dict[int, list[int]] = field(default_factory=dict)  # indices of files with more names


def scan(folder: OutputFolder, plan: Plan) -> Scan:
    """Read the names and sizes in the folder and its image folders. Claims are the only files that
    are opened."""
    found = Scan(array("q", [ABSENT]) * len(plan))
    if folder.template is None:
        _scan_by_index(folder, found)
    else:
        _Templated(folder, plan, folder.template, found).scan(folder.dir, "", folder.template.depth)
    for directory in filter(Path.is_dir, (folder.own, folder.journals)):
        for entry in _entries(directory):
            _add_temporary(entry, found)
    return found


def _scan_by_index(folder: OutputFolder, found: Scan) -> None:
    for entry in _entries(folder.dir):
        if is_folder_name(entry.name) and entry.is_dir(follow_symlinks=False):
            for inner in _entries(Path(entry.path)):
                _add(inner, f"{entry.name}/", folder.images_per_folder, found)
        else:
            _add(entry, "", folder.images_per_folder, found)


class _Templated:
    """A folder whose images are named by a template."""

    def __init__(
        self, folder: OutputFolder, plan: Plan, template: NameTemplate, found: Scan
    ) -> None:
        self.folder, self.plan, self.found = folder, plan, found
        self.indices = check_names(plan, template)

    def scan(self, directory: Path, prefix: str, depth: int) -> None:
        """Read a folder, and the folders in it down to `depth`. Links are not followed."""
        for entry in _entries(directory):
            if entry.name.startswith("."):
                _add_temporary(entry, self.found)
            elif depth and entry.is_dir(follow_symlinks=False):
                self.scan(Path(entry.path), f"{prefix}{entry.name}/", depth - 1)
            elif entry.name.endswith(".png"):
                self._add(entry, prefix + entry.name)

    def _add(self, entry: os.DirEntry[str], name: str) -> None:
        """An image by its name, or a file that no image of the plan has the name of."""
        index = self.indices.get(name_key(name))
        if index is not None and self.folder.image_name(self.plan.task(index)) == name:
            _add_image(entry, index, self.found)
        else:
            _add_image(entry, len(self.plan) + len(self.found.beyond), self.found)


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from entries


def _add(entry: os.DirEntry[str], prefix: str, images_per_folder: int | None, found: Scan) -> None:
    if entry.name.startswith("."):
        _add_temporary(entry, found)
    elif entry.name.endswith(".png"):
        name = prefix + entry.name
        index = image_index(name, images_per_folder)
        if index is not None:
            _add_image(entry, index, found)
        elif is_folder_name(entry.name.removesuffix(".png")):
            found.misplaced.append(name)
        else:
            found.others.append(name)


def _add_image(entry: os.DirEntry[str], index: int, found: Scan) -> None:
    size = NO_FILE
    if entry.is_file(follow_symlinks=False):
        state = entry.stat(follow_symlinks=False)
        size = state.st_size
        if state.st_nlink > 1:
            found.links.setdefault(state.st_ino, []).append(index)
    if index < len(found.sizes):
        found.sizes[index] = size
    else:
        found.beyond[index] = Path(entry.path), size


def _add_temporary(entry: os.DirEntry[str], found: Scan) -> None:
    fingerprint = files.moving_fingerprint(entry.name)
    if fingerprint is not None and entry.is_file(follow_symlinks=False):
        found.moving.append((Path(entry.path), fingerprint))
        return
    launch = _writer(entry)
    if launch is not None:
        found.temporaries.append((Path(entry.path), launch))


def _writer(entry: os.DirEntry[str]) -> str | None:
    """The launch that writes a temporary file or has made a claim; None for any other file."""
    if not entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
        return None  # reading a FIFO would block
    if files.is_claim(entry.name):
        with contextlib.suppress(OSError):
            return Path(entry.path).read_bytes()[:64].decode(errors="replace")
    return files.temporary_launch(entry.name)
