"""Write results to PNG files and journal lines, while the next batch is computed."""

import logging
import queue
import stat
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from runner.errors import RunnerError
from runner.folder import png
from runner.folder.journal import Journal
from runner.folder.paths import OutputFolder
from runner.launch.tally import Tally
from runner.manifest.schema import Manifest
from runner.plan import Fingerprints, Task
from runner.render.results import Failure, Image
from runner.render.texts import texts
from runner.say import note

__all__ = ["Writer"]

QUEUE_LENGTH = 16  # images that may wait: enough for a slow disk, few enough for the memory
ATTEMPTS, RETRY_S = 20, 0.1  # where another process takes the name for a moment


class Writer:
    """A thread that encodes, commits and records results in the order they come.

    A fault in one image fails that image. A fault of the disk, or of the writer itself, stops the
    writer; `put` raises it, and so does the end of the `with` block, which first writes what waits.
    `check_owned` is called before each image and each journal line; it raises TakenOverError.
    """

    def __init__(
        self,
        folder: OutputFolder,
        manifest: Manifest,
        fingerprints: Fingerprints,
        journal: Journal,
        tally: Tally,
        launch: str,
        check_owned: Callable[[], None],
        *,
        regenerate: bool = False,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.fingerprints = fingerprints
        self.journal = journal
        self.tally = tally
        self.launch = launch
        self.check_owned = check_owned
        self.regenerate = regenerate
        self._queue: queue.Queue[Image | Failure | None] = queue.Queue(QUEUE_LENGTH)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="writer")

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def put(self, result: Image | Failure) -> None:
        """Waits while the queue is full. Raises the error that stopped the writer."""
        if self._error is not None:
            raise self._error
        self._queue.put(result)

    def _run(self) -> None:
        while (result := self._queue.get()) is not None:
            if self._error is not None:
                continue  # drop the rest, so that `put` does not wait for a broken disk
            try:
                self._record(result)
            except Exception as error:
                self._error = error

    def _record(self, result: Image | Failure) -> None:
        if isinstance(result, Failure):
            self._fail(result)
            return
        try:
            self._write(result)
        except RunnerError:  # the disk, or the folder is not ours any more
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            self._fail(Failure(result.task, "write", words, traceback.format_exc()))

    def _write(self, image: Image) -> None:
        task, path = image.task, self.folder.image(image.task)
        fingerprint, data = self.fingerprints.of(task), b""
        self.folder.make_folders(path)
        for _ in range(ATTEMPTS):
            held = self._fingerprint_there(task)
            if held == fingerprint:
                return  # a finished member of a batch made again, or another replica made it
            if held is not None and not (held and self.regenerate and not _is_edited(path)):
                words = f"{path.name} is there, not as the runner wrote it; move it away"
                self._fail(Failure(task, "taken", words))
                return
            data = data or self._encode(image)
            commit = png.commit if held is None else png.overwrite
            committed = commit(path, data, self.launch, self.check_owned)
            if committed is not None:
                size, crc = committed
                self.check_owned()
                self.journal.done(task.index, fingerprint, size, crc, image.made)
                self.tally.image()
                return
            time.sleep(RETRY_S)  # the name was taken a moment ago: look again
        self._fail(Failure(task, "taken", f"{path.name} is claimed by another process"))

    def _fingerprint_there(self, task: Task) -> str | None:
        """The fingerprint in the file that has the task's name: "" where it has none, None where
        there is no file."""
        path = self.folder.image(task)
        try:
            is_plain = stat.S_ISREG(path.lstat().st_mode)
        except FileNotFoundError:
            return None
        text = png.read_text(path) if is_plain else None
        return (text or {}).get("fingerprint", "")

    def _fail(self, failure: Failure) -> None:
        task = failure.task
        fingerprint = self.fingerprints.of(task)
        if self._fingerprint_there(task) == fingerprint:
            return
        self.check_owned()
        fault = self.tally.fault() if failure.trace else 0
        why = (failure.kind, failure.error, failure.trace)
        self.journal.failed(task.index, fingerprint, *why, fault)
        note(f"image {task.index}: {failure.error}\n{failure.trace}".rstrip(), logging.WARNING)
        if failure.kind == "skipped":
            self.tally.skipped()
        else:
            self.tally.failure()

    def _encode(self, image: Image) -> bytes:
        text = texts(image, self.manifest, self.fingerprints)
        return png.encode(image.pixels, text, self.manifest.output.png_level)


def _is_edited(path: Path) -> bool:
    """Whether somebody changed the pixels of an image that the runner wrote."""
    return png.read_text(path, is_whole=True) == {}
