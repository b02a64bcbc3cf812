"""The lock of a job on its output folder, and its heartbeat, which other machines can see."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from runner.errors import FolderError
from runner.folder import files
from runner.folder.paths import OutputFolder
from runner.launch.shards import Part

__all__ = ["FolderLock", "guard", "live_launches", "live_parts"]

HEARTBEAT_S = 3.0
DEAD_AFTER_S = 30.0  # without a heartbeat, for an owner on another machine


class FolderLock:
    """One job at a time works on a folder; parts of the same N may work at the same time.

    The owner touches its file every HEARTBEAT_S. On the same machine it is seen at once that the
    owner's process has ended. An owner on another machine counts as dead when its file was not
    touched for DEAD_AFTER_S.
    """

    def __init__(self, folder: OutputFolder, launch: str, part: Part | None) -> None:
        self.folder = folder
        self.launch = launch
        self.part = part
        name = f"{part[0]}-of-{part[1]}.json" if part else "all.json"
        self.path = folder.locks / name
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Raises FolderError while another job lives on the folder."""
        self.folder.locks.mkdir(parents=True, exist_ok=True)
        with guard(self.folder.locks / "guard"):
            for path in sorted(self.folder.locks.glob("*.json")):
                owner = _read(path)
                if self._is_sibling(owner) and path != self.path:
                    continue
                if is_alive(path, owner):
                    raise FolderError(
                        f"{self.folder.dir}: another job works on this folder (process "
                        f"{owner.get('pid')} on {owner.get('host')}); wait for it, or use another "
                        f"folder: --output DIR"
                    )
                path.unlink(missing_ok=True)
            files.replace(self.path, (json.dumps(self._owner()).encode(),), self.launch)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        return self._thread is not None

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if _read(self.path).get("launch") == self.launch:
                self.path.unlink(missing_ok=True)

    def _is_sibling(self, owner: dict[str, Any]) -> bool:
        theirs = owner.get("shard")
        return bool(self.part and theirs and theirs[1] == self.part[1])

    def _owner(self) -> dict[str, Any]:
        return {
            "launch": self.launch,
            "shard": self.part,
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
        }

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def live_parts(folder: OutputFolder) -> list[Part | None]:
    """The parts of the jobs that work on the folder; None for a job without --shard."""
    owners = _live_owners(folder)
    return [tuple(owner["shard"]) if owner.get("shard") else None for owner in owners]


def live_launches(folder: OutputFolder) -> set[str]:
    """The launches that work on the folder."""
    return {str(owner.get("launch")) for owner in _live_owners(folder)}


def _live_owners(folder: OutputFolder) -> list[dict[str, Any]]:
    """The owners of locks that are alive, without waiting for a heartbeat."""
    paths = sorted(folder.locks.glob("*.json")) if folder.locks.is_dir() else []
    owners = [(path, _read(path)) for path in paths]
    return [owner for path, owner in owners if is_alive(path, owner, 0.0)]


def is_alive(path: Path, owner: dict[str, Any], patience_s: float = DEAD_AFTER_S) -> bool:
    """Whether a lock's owner lives: its process on the same machine, else its heartbeat. This waits
    up to `patience_s` for a heartbeat; with 0 it compares the file's time with the clock."""
    if owner and owner.get("machine") == _machine():
        started = _started(int(owner.get("pid", 0)))
        return started is not None and started == owner.get("started")
    before = _mtime(path)
    if patience_s == 0:
        return before is not None and time.time() - before / 1e9 < DEAD_AFTER_S
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        time.sleep(0.2)
        now = _mtime(path)
        if now is None:
            return False
        if now != before:
            return True
    return False


@contextlib.contextmanager
def guard(path: Path, patience_s: float = 2 * DEAD_AFTER_S) -> Iterator[None]:
    """Only one process at a time is inside; the kernel lets the next one in when it dies. Raises
    FolderError after `patience_s`."""
    end = time.monotonic() + patience_s
    with path.open("a") as file:
        while not _flock(file):
            if time.monotonic() > end:
                raise FolderError(
                    f"{path}: another job has held this file for {patience_s:g} s; end that job, "
                    f"then run the same command again"
                )
            time.sleep(0.05)
        yield


def _flock(file: IO[str]) -> bool:
    """Whether the file is locked now, or its file system has no locks: then the lock files of jobs
    must do alone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True


def _read(path: Path) -> dict[str, Any]:
    """The owner in a lock file; {} where there is none."""
    try:
        # Reading a FIFO would block.
        values = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and _is_owner(values) else {}


def _is_owner(values: dict[str, Any]) -> bool:
    shard = values.get("shard")
    is_shard = isinstance(shard, list) and [type(part) for part in shard] == [int, int]
    return type(values.get("pid")) is int and (shard is None or is_shard)


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _machine() -> str:
    """Where two processes get the same text, a process number means the same to both: one boot of
    one machine, one process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"unknown-{os.getpid()}"


def _started(pid: int) -> str | None:
    """When a living process started, in the kernel's ticks; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
