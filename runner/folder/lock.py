"""The lock of a job on its output folder, and its heartbeat, which other machines can see."""

import contextlib
import errno
import fcntl
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from runner.errors import FolderError, RefusedError, TakenOverError
from runner.folder import files, owners
from runner.folder.paths import OutputFolder
from runner.launch.layout import Part

__all__ = ["FolderLock", "Owned", "guard", "note_refusal"]


@dataclass(frozen=True, slots=True)
class Owned:
    """The lock file of a job, and the launch that it must name. Any rank of the job can ask.

    A process that was paused may wake up after another job took the folder over. So it asks each
    time before something in the folder gets a final name. What is left is the moment between the
    question and the rename.
    """

    path: Path
    launch: str

    @classmethod
    def of(cls, folder: OutputFolder, launch: str, part: Part | None) -> "Owned":
        return cls(owners.lock_file(folder, part), launch)

    def _read(self) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return files.again(self.path.read_bytes, but=FileNotFoundError)
        return b""

    def check(self) -> None:
        """Raises TakenOverError where the lock is not ours any more, and DiskError where it cannot
        be read."""
        with files.disk_errors(self.path):
            owner = owners.parse(self._read())
        if owner.get("launch") != self.launch:
            doubt = "" if owner else ", or somebody removed its lock"
            raise TakenOverError(
                f"{self.path.parents[2]}: another job took this folder over while this one was "
                f"paused{doubt}; nothing more is written; `status` shows how the folder stands"
            )


def note_refusal(
    folder: OutputFolder, error: RefusedError, owned: Owned, part: Part | None
) -> None:
    """Leave a note for `status` where a launch is refused. What is wrong with the folder `status`
    sees by itself."""
    if not isinstance(error, FolderError):
        text = str(error).encode()
        files.replace(folder.refusal_note(part), (text,), owned.launch, owned.check)


class FolderLock:
    """One job at a time works on a folder; parts of the same N may work at the same time.

    The owner touches its file every HEARTBEAT_S. On the same machine it is seen at once that the
    owner's process has ended. An owner on another machine counts as dead when its file was not
    touched for DEAD_AFTER_S while we looked.
    """

    def __init__(
        self,
        folder: OutputFolder,
        launch: str,
        part: Part | None,
        on_lost: Callable[[TakenOverError], None] = lambda _: None,
    ) -> None:
        """`on_lost` is called, in a thread, once another job has taken the folder over."""
        self.folder = folder
        self.launch = launch
        self.part = part
        self.owned = Owned.of(folder, launch, part)
        self.path = self.owned.path
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Raises FolderError while another job lives on the folder."""
        files.make_folder(self.folder.locks)
        with guard(self.folder.locks / "guard"):
            _remove_temporaries(self.folder.locks)
            others = [
                path
                for path in sorted(self.folder.locks.glob("*.json"))
                if path == self.path or not self._is_sibling(owners.read(path))
            ]
            for owner in owners.living(others, owners.DEAD_AFTER_S).values():
                raise FolderError(
                    f"{self.folder.dir}: another job works on this folder (process "
                    f"{owner.get('pid')} on {owner.get('host')}); wait for it, or use another "
                    f"folder: --output DIR"
                )
            for path in others:
                path.unlink(missing_ok=True)
            owner = owners.describe(self.launch, self.part)
            files.replace(self.path, (json.dumps(owner).encode(),), self.launch)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """As `Owned.check`."""
        self.owned.check()

    def note_list(self, checksum: int) -> None:
        """Say in the lock file which list of prompts this job works on, so that no sibling moves
        images under its feet."""
        owner = owners.describe(self.launch, self.part, checksum)
        files.replace(self.path, (json.dumps(owner).encode(),), self.launch, self.check)

    def refuse_other_lists(self, checksum: int) -> None:
        """Raises FolderError where a sibling works on another list of prompts."""
        paths = [path for path in self.folder.locks.glob("*.json") if path != self.path]
        for owner in owners.living(paths, owners.DEAD_AFTER_S).values():
            if owner.get("list") not in (None, checksum):
                raise FolderError(
                    f"{self.folder.dir}: images must be moved, and another part of the job works "
                    f"with another list of prompts (process {owner.get('pid')} on "
                    f"{owner.get('host')}); wait for it, or stop it with `runner stop`"
                )

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if owners.read(self.path).get("launch") == self.launch:
                self.path.unlink(missing_ok=True)

    def _is_sibling(self, owner: dict[str, Any]) -> bool:
        theirs = owner.get("shard")
        return bool(self.part and theirs and theirs[1] == self.part[1])

    def _beat(self) -> None:
        while not self._stop.wait(owners.HEARTBEAT_S):
            try:
                if not owners.beat(self.path, self.launch):
                    self.check()
            except TakenOverError as error:
                self._on_lost(error)
                return
            except OSError:
                continue  # the disk may be back in a moment


def _remove_temporaries(locks: Path) -> None:
    """Who writes a lock file holds the guard, as we do: what is unfinished there has no writer."""
    for path in locks.iterdir():
        if files.temporary_launch(path.name) is not None:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def guard(
    path: Path, patience_s: float = 2 * owners.DEAD_AFTER_S, *, is_shared: bool = False
) -> Iterator[None]:
    """Only one process at a time is inside, or several that share it; the kernel lets the next one
    in when it dies. Raises FolderError after `patience_s`."""
    end = time.monotonic() + patience_s
    with path.open("a") as file:
        while not _flock(file, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX):
            if time.monotonic() > end:
                raise FolderError(
                    f"{path}: another job has held this file for {patience_s:g} s; end that job, "
                    f"then run the same command again"
                )
            time.sleep(0.05)
        yield


def _flock(file: IO[str], kind: int) -> bool:
    """Whether the file is locked now, or its file system has no locks: then the lock files of jobs
    must do alone."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True
