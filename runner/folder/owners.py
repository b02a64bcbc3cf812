"""Who owns the locks of a folder, and which of the owners live.

No two clocks are compared: an owner on another machine lives if its heartbeat changes while we
watch. Of an owner on this machine, the kernel says it.
"""

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from runner.folder.paths import OutputFolder
from runner.launch.layout import Part

__all__ = [
    "beat",
    "describe",
    "live_launches",
    "live_parts",
    "living",
    "lock_file",
    "moment",
    "parse",
    "read",
    "seconds_since",
]

HEARTBEAT_S = 3.0
DEAD_AFTER_S = 30.0  # without a heartbeat, for an owner on another machine
GLANCE_S = 10.0  # the same, where nothing is lost if a living owner is taken for dead
POLL_S = 0.2


def lock_file(folder: OutputFolder, part: Part | None) -> Path:
    return folder.locks / (f"{part[0]}-of-{part[1]}.json" if part else "all.json")


def live_parts(folder: OutputFolder) -> list[Part | None]:
    """The parts of the jobs that work on the folder; None for a job without --shard."""
    owners = living(_lock_files(folder), GLANCE_S).values()
    return [tuple(owner["shard"]) if owner.get("shard") else None for owner in owners]


def live_launches(
    folder: OutputFolder, among: Container[str] | None = None, *, sure: bool = False
) -> set[str]:
    """The launches that work on the folder, of those `among`. With `sure`, only an owner without a
    heartbeat for DEAD_AFTER_S is taken for dead."""
    paths = [
        path for path in _lock_files(folder) if among is None or read(path).get("launch") in among
    ]
    owners = living(paths, DEAD_AFTER_S if sure else GLANCE_S).values()
    return {str(owner.get("launch")) for owner in owners}


def living(paths: Iterable[Path], patience_s: float) -> dict[Path, dict[str, Any]]:
    """Of these lock files those whose owners live, and their owners. Waits up to `patience_s` for
    the heartbeats of owners on other machines, of all at the same time."""
    owners = {path: read(path) for path in paths}
    found = {path: owner for path, owner in owners.items() if _is_alive_here(owner)}
    waiting = {path: _beat_of(path) for path, owner in owners.items() if not _is_from_here(owner)}
    end = time.monotonic() + patience_s
    while waiting and time.monotonic() < end:
        time.sleep(POLL_S)
        for path, before in list(waiting.items()):
            now = _beat_of(path)
            if now != before:
                del waiting[path]
            if now not in (None, before):
                found[path] = read(path) or owners[path]
    return found


def describe(launch: str, part: Part | None, checksum: int | None = None) -> dict[str, Any]:
    """This process as an owner. The checksum is that of its list of prompts; None before it has
    looked at the images."""
    return {
        "launch": launch,
        "shard": part,
        "list": checksum,
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def moment() -> dict[str, Any]:
    """Now, for a reader on this machine; to any other it says nothing."""
    return {"machine": _machine(), "monotonic_s": round(time.monotonic(), 3)}


def seconds_since(moment: object) -> float | None:
    """Seconds since a `moment` of this machine; None for one of another."""
    if not isinstance(moment, dict) or moment.get("machine") != _machine():
        return None
    then = moment.get("monotonic_s")
    return time.monotonic() - then if isinstance(then, float | int) else None


def read(path: Path) -> dict[str, Any]:
    """The owner in a lock file; {} where there is none."""
    try:
        # Reading a FIFO would block.
        return parse(path.read_bytes()) if path.is_file() else {}
    except OSError:
        return {}


def parse(data: bytes) -> dict[str, Any]:
    """The owner in a lock file's bytes; {} where they are damaged."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and _is_owner(values) else {}


def beat(path: Path, launch: str) -> bool:
    """Touch the lock file if it still belongs to this launch, and say whether it does. Raises
    OSError where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if parse(os.read(descriptor, 1 << 16)).get("launch") != launch:
            return False
        os.utime(descriptor)  # not by its path: another job's file may lie there by now
    finally:
        os.close(descriptor)
    return True


def _lock_files(folder: OutputFolder) -> list[Path]:
    return sorted(folder.locks.glob("*.json")) if folder.locks.is_dir() else []


def _is_owner(values: dict[str, Any]) -> bool:
    shard = values.get("shard")
    is_shard = isinstance(shard, list) and [type(part) for part in shard] == [int, int]
    return type(values.get("pid")) is int and (shard is None or is_shard)


def _is_from_here(owner: dict[str, Any]) -> bool:
    return bool(owner) and owner.get("machine") == _machine()


def _is_alive_here(owner: dict[str, Any]) -> bool:
    """Whether the owner is a living process of this machine."""
    if not _is_from_here(owner):
        return False
    started = _started(int(owner.get("pid", 0)))
    return started is not None and started == owner.get("started")


def _beat_of(path: Path) -> tuple[int, int] | None:
    """What the next heartbeat changes; None where there is no file. The file is opened, since a
    network file system shows an old time to those who only ask for it."""
    with contextlib.suppress(PermissionError):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        os.close(descriptor)
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


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
