"""The output folder: every path in it, and what must not lie there before a run writes."""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.errors import FolderError, RunnerError
from runner.folder import files
from runner.folder.names import image_name, is_folder_name, template_name
from runner.manifest.name_template import parse
from runner.manifest.schema import OutputSpec
from runner.plan import Task

__all__ = ["HEADER", "OutputFolder", "os_errors_as_refusals"]

REPORT_KEYS = {  # that the first line of each report has, and no file of another program
    "metadata.jsonl": {"file_name", "index", "prompt", "seed", "parameters", "fingerprint"},
    "failures.jsonl": {"index", "prompt", "kind", "error"},
    "summary.json": {"outcome", "exit_code", "images", "done", "missing", "launch", "replicas"},
}
NOTE_NAME = re.compile(r"refused(-\d+-of-\d+)?", re.ASCII)
MOST_BYTES = 1 << 24  # that are read of a report to recognize it
LINE_START = re.compile(r'\{("file_name":"(\\.|[^"\\])+",)?"index":\d+,"')
HEADER = "# Written by runner: the manifest as run. A resume reads it; edit your own manifest.\n"
PAGE_HEADER = "<!doctype html>\n<!-- Written by runner"
HEADERS = {"manifest.yaml": HEADER, "report.html": PAGE_HEADER}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def os_errors_as_refusals() -> Iterator[None]:
    """Turns errors of the system into FolderError, before the work begins: the folder cannot be
    used. A full or broken disk is no reason to refuse, since it can be mended. One that is
    read-only from the start is."""
    try:
        yield
    except OSError as error:
        is_broken = error.errno in files.DISK_ERRORS - {errno.EROFS}
        if isinstance(error, RunnerError) or is_broken or not error.filename:
            raise
        remedy = f"; make it {_lacks(error.filename)}" if error.errno in READ_ONLY else ""
        remedy += ", or use another folder" if remedy else ""
        raise FolderError(f"{error.filename}: {error.strerror}{remedy}") from error


def _lacks(name: str) -> str:
    """What a file or folder that may not be used lacks."""
    is_hidden = os.path.isfile(name) and not os.access(name, os.R_OK)
    return "readable" if is_hidden else "writable"


class OutputFolder:
    """The paths of an output folder. Nothing is written before `prepare`."""

    def __init__(self, directory: Path, spec: OutputSpec) -> None:
        self.dir = directory
        self.images_per_folder = spec.images_per_folder
        self.template = parse(spec.name) if spec.name else None
        self.own = directory / ".runner"
        self.journals = self.own / "journal"
        self.locks = self.own / "locks"
        self.logs = self.own / "logs"
        self.trial = self.own / "trial.json"
        self.model = self.own / "model.json"  # what the files of a local model were
        self.compared = self.own / "compared"  # see prepare/proof.py
        self.manifest = directory / "manifest.yaml"
        names = ("manifest-prompts.jsonl", "manifest-prompts.jsonl.gz")
        self.prompts = directory / names[0], directory / names[1]  # see recorded_prompts.py
        self.prompts_note = self.own / "prompts.json"
        self.metadata = directory / "metadata.jsonl"
        self.failures = directory / "failures.jsonl"
        self.summary = directory / "summary.json"
        self.report = directory / "report.html"
        self.thumbnails = self.own / "thumbnails"

    def image_name(self, task: Task) -> str:
        """Relative to the folder, as in metadata.jsonl. A pure function of the task."""
        if self.template is not None:
            return template_name(self.template, task)
        return image_name(task.index, self.images_per_folder)

    def image(self, task: Task) -> Path:
        return self.dir / self.image_name(task)

    def make_folders(self, image: Path) -> None:
        """Make the folders between this one and an image. Raises NotADirectoryError where a link
        has the name of one: the runner would write anywhere."""
        for path in reversed(image.relative_to(self.dir).parents[:-1]):
            files.make_folder(self.dir / path, parents=False)
            if not stat.S_ISDIR((self.dir / path).lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a link has the name of a folder", path)

    def live_summary(self, part: tuple[int, int] | None) -> Path:
        """What a job keeps up to date while it works: summary.json, or a file of its own where
        several jobs share the folder."""
        return self.own / f"{_with_part('summary', part)}.json" if part else self.summary

    def log(self, rank: int, part: tuple[int, int] | None) -> Path:
        return self.logs / f"{_with_part(f'rank-{rank:05d}', part)}.log"

    def metrics(self, part: tuple[int, int] | None) -> Path:
        return self.own / f"{_with_part('metrics', part)}.prom"

    def stop_file(self, part: tuple[int, int] | None) -> Path:
        """The file that asks a job to stop by being there; each job of an array has its own."""
        return self.own / _with_part("stop", part)

    def refusal_note(self, part: tuple[int, int] | None) -> Path:
        """The file that says why the last launch was refused; each job of an array has its own."""
        return self.own / _with_part("refused", part)

    @os_errors_as_refusals()
    def prepare(self) -> None:
        """Make the folder. Raises FolderError as `check` does."""
        files.make_folder(self.dir)
        self.check()
        files.make_folder(self.own)
        if not files.can_rename(self.own):
            raise FolderError(
                f"{self.dir}: this file system cannot rename files; use another folder: "
                f"--output DIR"
            )

    @os_errors_as_refusals()
    def check(self) -> None:
        """Raises FolderError where a run would overwrite a file that the runner did not write, or
        where a link, a folder or a FIFO has the name of one of its files. Only reads."""
        reports = (self.manifest, self.metadata, self.failures, self.summary, self.report)
        guards = (self.locks / name for name in ("guard", "batches", "report", "moves"))
        own = (self.own, self.journals, self.locks, self.logs, self.thumbnails)
        for path in (self.dir, *own, *self._image_folders()):
            _refuse_unless(stat.S_ISDIR, path)
        notes = (self.trial, self.model, self.compared, self.prompts_note, *self._refusal_notes())
        for path in (*reports, *self.prompts, *guards, *notes):
            _refuse_unless(stat.S_ISREG, path)
        for path in reports:
            if path.exists() and not _is_report(path):
                raise FolderError(
                    f"{path}: was not written by the runner and would be overwritten; use "
                    f"another folder: --output DIR"
                )

    def refusal(self, part: tuple[int, int] | None = None) -> str:
        """Why the last launch of this part was refused, or of any part; "" where it was not."""
        notes = (self.refusal_note(part), self.refusal_note(None)) if part else None
        for path in notes or self._refusal_notes():
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    return path.read_text(encoding="utf-8", errors="replace")
        return ""

    def forget_refusal(self, part: tuple[int, int] | None) -> None:
        """Remove the note of a part, or all notes."""
        for path in [self.refusal_note(part)] if part else self._refusal_notes():
            path.unlink(missing_ok=True)

    def ask_to_stop(self, part: tuple[int, int] | None) -> None:
        """Make the stop file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        os.close(os.open(self.stop_file(part), flags, 0o666))

    def _refusal_notes(self) -> list[Path]:
        if not self.own.is_dir():
            return []
        return [path for path in sorted(self.own.iterdir()) if NOTE_NAME.fullmatch(path.name)]

    def _image_folders(self) -> list[Path]:
        """Everything that has the name of an image folder."""
        if not self.images_per_folder or not self.dir.is_dir():
            return []
        return [path for path in self.dir.iterdir() if is_folder_name(path.name)]


def _with_part(name: str, part: tuple[int, int] | None) -> str:
    return f"{name}-{part[0]}-of-{part[1]}" if part else name


def _refuse_unless(is_right: Callable[[int], bool], path: Path) -> None:
    """Raises FolderError where something of another kind has the name. Through a link the runner
    would write anywhere; reading a FIFO would block."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise FolderError(f"{path}: a link, which the runner does not follow; remove it")
    if not is_right(mode):
        word = "folder" if is_right is stat.S_ISDIR else "file"
        raise FolderError(
            f"{path}: is not a {word}, and the runner needs the name for one; remove it, or use "
            f"another folder: --output DIR"
        )


def _is_report(path: Path) -> bool:
    """Whether the runner wrote a report, so that nothing is lost when it is written again."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:  # damage further on
            if header := HEADERS.get(path.name):
                return file.read(len(header)) == header
            is_lines = path.suffix == ".jsonl"
            text = file.readline(MOST_BYTES) if is_lines else file.read(MOST_BYTES)
            if is_lines and len(text) == MOST_BYTES:  # a line this long has a very long prompt
                return LINE_START.match(text) is not None
        values = json.loads(text or "{}")
        return not text or (isinstance(values, dict) and REPORT_KEYS[path.name] <= values.keys())
    except (ValueError, RecursionError):
        return False
