"""The output folder: the one owner of every path in it."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import contextlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner import files
from runner.errors import FolderError
from runner.images import image_index, image_name
from runner.manifest import OutputSpec

__all__ = ["ABSENT", "HEADER", "LINK", "OutputFolder", "Scan"]

HEADER = "# Written by runner: the manifest as run. A resume reads it; edit your own manifest.\n"
ABSENT, LINK = -1, -2  # in place of a size


@dataclass(slots=True)
class Scan:
    """What lies in the folder: the sizes of the plan's images by index, of those beyond the plan's
    end, and temporary files with the launches that wrote them."""

    sizes: array[int]
    beyond: dict[int, int] = field(default_factory=dict)
    temporaries: list[tuple[Path, str]] = field(default_factory=list)


class OutputFolder:
    """Paths of an output folder. Nothing is touched before `prepare`."""

    def __init__(self, directory: Path, spec: OutputSpec) -> None:
        self.dir = directory
        self.images_per_folder = spec.images_per_folder
        self.own = directory / ".runner"
        self.journals = self.own / "journal"
        self.locks = self.own / "locks"
        self.logs = self.own / "logs"
        self.manifest = directory / "manifest.yaml"
        self.metadata = directory / "metadata.jsonl"
        self.failures = directory / "failures.jsonl"
        self.summary = directory / "summary.json"

    def image(self, index: int) -> Path:
        return self.dir / image_name(index, self.images_per_folder)

    def stop_file(self, shard: tuple[int, int] | None) -> Path:
        """Its existence asks the job to stop; each job of an array has its own."""
        return self.own / (f"stop-{shard[0]}-of-{shard[1]}" if shard else "stop")

    def was_run(self) -> bool:
        return self.own.is_dir()

    def prepare(self) -> None:
        """Make the folder. Raises FolderError where it holds files that a run would overwrite."""
        try:
            self.dir.mkdir(parents=True, exist_ok=True)
            if not self.was_run():
                self._refuse_foreign()
            self.own.mkdir(exist_ok=True)
        except OSError as error:
            raise FolderError(f"{self.dir}: {error.strerror}") from None
        self._refuse_links()

    def _refuse_links(self) -> None:
        """A link in a folder from elsewhere would make us write where it leads."""
        ours = (self.own, self.journals, self.locks, self.locks / "guard", self.logs)
        reports = (self.manifest, self.metadata, self.failures, self.summary)
        folders = [p for p in self.dir.iterdir() if p.name.isdecimal()] if self._nests else []
        for path in (*ours, *reports, *folders):
            if path.is_symlink():
                raise FolderError(f"{path}: a link, which the runner does not follow; remove it")

    @property
    def _nests(self) -> bool:
        return self.images_per_folder is not None

    def ask_to_stop(self, shard: tuple[int, int] | None) -> None:
        """Make the stop file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        os.close(os.open(self.stop_file(shard), flags, 0o666))

    def _refuse_foreign(self) -> None:
        for path in (self.manifest, self.metadata, self.failures, self.summary):
            if os.path.lexists(path) and not self._is_ours(path):
                raise FolderError(
                    f"{path}: was not written by the runner and would be overwritten; use another "
                    f"folder: --output DIR"
                )

    def _is_ours(self, path: Path) -> bool:
        """Left after somebody removed `.runner/` alone: our manifest stands beside it."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self.manifest.read_text(encoding="utf-8").startswith(HEADER)
        return False

    def scan(self, total: int) -> Scan:
        """One pass over the folder, and over its image folders where it has some, for a plan of
        `total` images. No file is opened but a claim."""
        found = Scan(array("q", [ABSENT]) * total)
        self._scan_into(found, self.dir, "")
        if self.journals.is_dir():
            found.temporaries += _temporaries_in(self.journals)
        return found

    def _scan_into(self, found: Scan, directory: Path, prefix: str) -> None:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    if (launch := _writer_of(entry)) is not None:
                        found.temporaries.append((Path(entry.path), launch))
                elif entry.name.endswith(".png"):
                    index = image_index(prefix + entry.name, self.images_per_folder)
                    if index is not None:
                        # A link is no image of ours, wherever it leads.
                        size = LINK if entry.is_symlink() else _size_of(entry)
                        (found.sizes if index < len(found.sizes) else found.beyond)[index] = size
                elif (
                    self.images_per_folder
                    and not prefix
                    and entry.name.isdecimal()
                    and entry.is_dir(follow_symlinks=False)
                ):
                    self._scan_into(found, Path(entry.path), f"{entry.name}/")


def _size_of(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_size


def _temporaries_in(directory: Path) -> Iterator[tuple[Path, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if (launch := _writer_of(entry)) is not None:
                yield Path(entry.path), launch


def _writer_of(entry: os.DirEntry[str]) -> str | None:
    """The launch that a temporary file or a claim is of, or None for any other file."""
    if entry.name.startswith(".") and entry.name.endswith(f".png{files.CLAIM}"):
        with contextlib.suppress(OSError):
            return Path(entry.path).read_bytes()[:64].decode(errors="replace")
    return files.launch_of(entry.name)
