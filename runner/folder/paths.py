"""The output folder: the one owner of every path in it."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import contextlib
import errno
import json
import os
import stat
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import FolderError, RunnerError
from runner.folder import files
from runner.folder.names import image_index, image_name, is_folder_name
from runner.manifest.schema import OutputSpec

__all__ = ["ABSENT", "HEADER", "NO_FILE", "OutputFolder", "Scan", "told_as_refusal"]

MARKS = {  # keys of the first line of each report, which together only ours have
    "metadata.jsonl": {"file_name", "index", "prompt", "seed", "parameters", "fingerprint"},
    "failures.jsonl": {"index", "prompt", "kind", "error"},
    "summary.json": {"outcome", "exit_code", "images", "done", "missing", "launch", "replicas"},
}
MOST_BYTES = 1 << 24  # of a report that are read to know it
HEADER = "# Written by runner: the manifest as run. A resume reads it; edit your own manifest.\n"
ABSENT, NO_FILE = -1, -2  # in place of a size; a link, a folder or a pipe is no file of ours
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def told_as_refusal() -> Iterator[None]:
    """Raises FolderError for what the system refuses before work began. A disk that is full or
    broken may be mended: no fault of what was asked for. One that is read-only at the start was
    asked for."""
    try:
        yield
    except OSError as error:
        is_broken = error.errno in files.DISK_ERRORS - {errno.EROFS}
        if isinstance(error, RunnerError) or is_broken or not error.filename:
            raise
        remedy = "; make it writable, or use another folder" if error.errno in READ_ONLY else ""
        raise FolderError(f"{error.filename}: {error.strerror}{remedy}") from error


@dataclass(slots=True)
class Scan:
    """What lies in the folder: the sizes of the plan's images by index, of those beyond the plan's
    end, the names that another images_per_folder gives, and temporary files with the launches that
    wrote them."""

    sizes: array[int]
    beyond: dict[int, int] = field(default_factory=dict)
    misplaced: list[str] = field(default_factory=list)
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
        self.trial = self.own / "trial.json"
        self.model = self.own / "model.json"  # what the files of a local model were
        self.refused = self.own / "refused"
        self.manifest = directory / "manifest.yaml"
        self.metadata = directory / "metadata.jsonl"
        self.failures = directory / "failures.jsonl"
        self.summary = directory / "summary.json"

    def image(self, index: int) -> Path:
        return self.dir / image_name(index, self.images_per_folder)

    def stop_file(self, shard: tuple[int, int] | None) -> Path:
        """Its existence asks the job to stop; each job of an array has its own."""
        return self.own / (f"stop-{shard[0]}-of-{shard[1]}" if shard else "stop")

    @told_as_refusal()
    def prepare(self) -> None:
        """Make the folder. Raises FolderError as `check` does."""
        self.dir.mkdir(parents=True, exist_ok=True)
        self.check()
        self.own.mkdir(exist_ok=True)

    @told_as_refusal()
    def check(self) -> None:
        """Raises FolderError where a run would overwrite what is not ours, or finds a link, a
        folder or a pipe under the name of a file of ours. Only reads."""
        folders = [self.dir, self.own, self.journals, self.locks, self.logs]
        reports = (self.manifest, self.metadata, self.failures, self.summary)
        for path in folders:
            _refuse_unless(stat.S_ISDIR, path)
        if self.images_per_folder and self.dir.is_dir():
            for path in self.dir.iterdir():
                if is_folder_name(path.name):
                    _refuse_unless(stat.S_ISDIR, path)
        guards = (self.locks / name for name in ("guard", "batches", "report"))
        for path in (*reports, *guards, self.trial, self.model, self.refused):
            _refuse_unless(stat.S_ISREG, path)
        for path in reports:
            if path.exists() and not _is_ours(path):
                raise FolderError(
                    f"{path}: was not written by the runner and would be overwritten; use "
                    f"another folder: --output DIR"
                )

    def refusal(self) -> str:
        """Why the last launch was refused, where it was."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(self.refused.lstat().st_mode):
                return self.refused.read_text(encoding="utf-8", errors="replace")
        return ""

    def ask_to_stop(self, shard: tuple[int, int] | None) -> None:
        """Make the stop file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        os.close(os.open(self.stop_file(shard), flags, 0o666))

    def scan(self, total: int) -> Scan:
        """One pass over the folder and its image folders, for a plan of `total` images. No file is
        opened but a claim."""
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
                        size = _size_of(entry)
                        (found.sizes if index < len(found.sizes) else found.beyond)[index] = size
                    elif is_folder_name(entry.name.removesuffix(".png")):
                        found.misplaced.append(prefix + entry.name)
                elif (
                    not prefix
                    and is_folder_name(entry.name)
                    and entry.is_dir(follow_symlinks=False)
                ):
                    self._scan_into(found, Path(entry.path), f"{entry.name}/")


def _refuse_unless(is_right: Callable[[int], bool], path: Path) -> None:
    """Raises FolderError where something else has the name. A link in a folder from elsewhere would
    make us write where it leads; a pipe would keep us for ever."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise FolderError(f"{path}: a link, which the runner does not follow; remove it")
    if not is_right(mode):
        word = "folder" if is_right is stat.S_ISDIR else "file"
        raise FolderError(
            f"{path}: is no {word}, and the runner needs the name for one; remove it, or use "
            f"another folder: --output DIR"
        )


def _is_ours(path: Path) -> bool:
    """Whether a report is of the runner's making: nothing is lost where it is written anew."""
    try:
        with path.open(encoding="utf-8") as file:
            if path.name not in MARKS:
                return file.read(len(HEADER)) == HEADER
            is_lines = path.suffix == ".jsonl"
            text = file.readline(MOST_BYTES) if is_lines else file.read(MOST_BYTES)
        values = json.loads(text or "{}")
        return not text or (isinstance(values, dict) and MARKS[path.name] <= values.keys())
    except (ValueError, RecursionError):
        return False


def _size_of(entry: os.DirEntry[str]) -> int:
    is_file = entry.is_file(follow_symlinks=False)
    return entry.stat(follow_symlinks=False).st_size if is_file else NO_FILE


def _temporaries_in(directory: Path) -> Iterator[tuple[Path, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if (launch := _writer_of(entry)) is not None:
                yield Path(entry.path), launch


def _writer_of(entry: os.DirEntry[str]) -> str | None:
    """The launch that a temporary file or a claim is of, or None for whatever else there is: a
    pipe would keep us."""
    if not entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
        return None
    if files.is_claim(entry.name):
        with contextlib.suppress(OSError):
            return Path(entry.path).read_bytes()[:64].decode(errors="replace")
    return files.launch_of(entry.name)
