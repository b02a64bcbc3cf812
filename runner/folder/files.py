"""Files that are whole or absent, whatever dies while they are written."""

import errno
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from runner.errors import DiskError

__all__ = ["DISK_ERRORS", "TEMPORARY", "create", "is_claim", "launch_of", "replace"]

TEMPORARY = ".part"  # the ending of a file that is being written
# .000001.png.5f3a90c2.0a0b0c0d.part: a file of ours, its launch, a few random digits
OURS = re.compile(
    r"\.(\d{6,}\.png|[a-z0-9-]+\.(jsonl?|yaml))\.(?P<launch>[0-9a-f]{8})\.[0-9a-f]{8}\.part",
    re.ASCII,
)
CLAIM = ".claim"  # holds the launch that may rename to the name before the ending
OUR_CLAIM = re.compile(r"\.\d{6,}\.png\.claim", re.ASCII)  # images alone are claimed
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.EOPNOTSUPP}


def create(path: Path, chunks: Iterable[bytes], launch: str) -> None:
    """Give the bytes the name `path`, whole and durable.

    Raises FileExistsError where the name is taken; DiskError for whatever else the disk refuses:
    it is full, read-only, broken, gone.
    """
    temporary = _write(path, chunks, launch)
    try:
        _link(temporary, path, launch)
    except FileExistsError:
        raise
    except OSError as error:
        raise _told(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def replace(path: Path, chunks: Iterable[bytes], launch: str) -> None:
    """As `create`, but over an existing file: the name holds the old bytes, then the new ones."""
    temporary = _write(path, chunks, launch)
    try:
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _told(error, path) from error


def launch_of(name: str) -> str | None:
    """The launch that a temporary file's name tells, or None for any other file."""
    found = OURS.fullmatch(name)
    return found["launch"] if found else None


def is_claim(name: str) -> bool:
    return OUR_CLAIM.fullmatch(name) is not None


def _write(path: Path, chunks: Iterable[bytes], launch: str) -> Path:
    """The bytes in a temporary file beside `path`, on the disk before this returns."""
    temporary = path.parent / f".{path.name}.{launch}.{secrets.token_hex(4)}{TEMPORARY}"
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _told(error, path) from error
    return temporary


def _link(temporary: Path, path: Path, launch: str) -> None:
    """Raises FileExistsError where the name is taken: `os.rename` would overwrite it."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # A file system without hard links: only the holder of the claim may rename to the name.
        claim = path.parent / f".{path.name}{CLAIM}"
        descriptor = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.write(descriptor, launch.encode())
            os.close(descriptor)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "exists", str(path)) from None
            os.rename(temporary, path)
        finally:
            claim.unlink()


def _told(error: OSError, path: Path) -> DiskError:
    return DiskError(error.errno, f"{path}: {error.strerror}")
