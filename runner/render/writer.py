"""The background writer: results → PNG files and journal lines, beside the next batch."""

import contextlib
import queue
import stat
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.errors import DiskError
from runner.folder import png as images
from runner.folder.journal import Journal
from runner.folder.paths import OutputFolder
from runner.launch.store import Store, StoreLostError
from runner.manifest.schema import Manifest
from runner.plan import Fingerprints, Task
from runner.render.results import Failure, Image

__all__ = ["Writer"]

QUEUE_LENGTH = 16  # images that may wait: bounds the memory, rides out a slow disk


class Writer:
    """One thread that encodes, commits and records results in the order they come.

    A fault of one image fails that image; a fault of the disk (or of the writer itself) stops it,
    and `put` and leaving raise it. Use as a context manager: leaving drains the queue.
    """

    def __init__(
        self,
        folder: OutputFolder,
        manifest: Manifest,
        fingerprints: Fingerprints,
        journal: Journal,
        store: Store,
        launch: str,
        *,
        regenerate: bool = False,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.fingerprints = fingerprints
        self.journal = journal
        self.store = store
        self.launch = launch
        self.regenerate = regenerate
        self._queue: queue.Queue[Image | Failure | None] = queue.Queue(QUEUE_LENGTH)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="writer")

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def put(self, result: Image | Failure) -> None:
        """Waits while the queue is full. Raises DiskError once the disk has failed."""
        if self._error is not None:
            raise self._error
        self._queue.put(result)

    def _work(self) -> None:
        while (result := self._queue.get()) is not None:
            if self._error is not None:
                continue  # drained, so that `put` never waits for a dead disk
            try:
                self._record(result)
            except Exception as error:
                self._error = error

    def _record(self, result: Image | Failure) -> None:
        if isinstance(result, Image):
            try:
                self._write(result)
            except DiskError:
                raise
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                self._fail(Failure(result.task, "write", words, traceback.format_exc()))
        else:
            self._fail(result)

    def _write(self, image: Image, attempts: int = 20) -> None:
        task, path = image.task, self.folder.image(image.task.index)
        fingerprint = self.fingerprints.of(task)
        held = self._held(task)
        if held == fingerprint:
            return None  # a finished member of a batch made again, or another replica's work
        data = images.encode(
            image.pixels, self._text(image, fingerprint), self.manifest.output.png_level
        )
        if held is None:
            committed = images.commit(path, data, self.launch)
            if committed is None and attempts:
                time.sleep(0.1)  # the name was taken in this moment: look again
                return self._write(image, attempts - 1)
            if committed is None:
                return self._fail(Failure(task, "taken", f"{path.name} is claimed by another"))
        elif held and self.regenerate and not _is_edited(path):
            committed = images.replace(path, data, self.launch)
        else:
            words = f"{path.name} is there already, not as the runner wrote it; move it away"
            return self._fail(Failure(task, "taken", words))
        self.journal.done(task.index, fingerprint, committed.size, committed.crc, image.made)
        self._count("finished")
        return None

    def _held(self, task: Task) -> str | None:
        """The fingerprint in the file that has the task's name, "" for a file not ours, None for
        no file."""
        path = self.folder.image(task.index)
        try:
            is_plain = stat.S_ISREG(path.lstat().st_mode)
        except FileNotFoundError:
            return None
        text = images.read_text(path) if is_plain else None
        return (text or {}).get("fingerprint", "")

    def _fail(self, failure: Failure) -> None:
        fingerprint = self.fingerprints.of(failure.task)
        if self._held(failure.task) == fingerprint:
            return
        self.journal.failed(
            failure.task.index, fingerprint, failure.kind, failure.error, failure.trace
        )
        self._count("finished")
        if failure.kind != "skipped":
            self._count("failed")

    def _count(self, key: str) -> None:
        with contextlib.suppress(StoreLostError):
            self.store.add(key)

    def _text(self, image: Image, fingerprint: str) -> Mapping[str, Any]:
        """What an image alone needs to be made again."""
        model = self.manifest.model
        return {
            "Software": f"runner {self.manifest.versions.get('runner', '')}",
            "prompt": image.task.prompt,
            "seed": str(image.task.seed),
            "parameters": dict(image.task.parameters),
            "model": {"id": model.id, "revision": model.revision, "variant": model.variant},
            "dtype": self.manifest.dtype,
            "index": str(image.task.index),
            "fingerprint": fingerprint,
            "versions": self.manifest.versions,
            "made": image.made,
        }


def _is_edited(path: Path) -> bool:
    """Whether an image of ours has other pixels than those that it was written with, its size the
    same or not."""
    return images.read_text(path, whole=True) == {}
