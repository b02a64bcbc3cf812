"""Write files that are whole or absent, even where the process is killed meanwhile."""

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from runner.errors import DiskError

__all__ = [
    "DISK_ERRORS",
    "create",
    "is_claim",
    "no_check",
    "replace",
    "temporary_launch",
    "temporary_path",
]

TEMPORARY = ".part"  # the ending of a file that is being written
# .000001.png.5f3a90c2.0a0b0c0d.part: the file's name, the launch that writes it, random digits
TEMPORARY_NAME = re.compile(
    r"\.(\d{6,}\.png|[a-z0-9-]+\.(jsonl?|yaml)|(refused|crash)[0-9a-z-]*)"
    r"\.(?P<launch>[0-9a-f]{8})\.[0-9a-f]{8}\.part",
    re.ASCII,
)
CLAIM = ".claim"  # the ending of a file whose content is the launch that may take the name
CLAIM_NAME = re.compile(r"\.\d{6,}\.png\.claim", re.ASCII)  # only images are claimed
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.EOPNOTSUPP}


def no_check() -> None:
    """For files that no other job could own."""


def create(
    path: Path, chunks: Iterable[bytes], launch: str, check: Callable[[], None] = no_check
) -> None:
    """Write a new file, whole and durable. `check` is called just before the file gets its name,
    and may raise.

    Raises FileExistsError where the name is taken, and DiskError for any other error of the disk:
    it is full, read-only, broken or gone.
    """
    temporary = _write(path, chunks, launch)
    try:
        check()
        _link(temporary, path, launch)
    except (FileExistsError, DiskError):
        raise
    except OSError as error:
        raise _disk_error(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def replace(
    path: Path, chunks: Iterable[bytes], launch: str, check: Callable[[], None] = no_check
) -> None:
    """As `create`, but over an existing file: a reader sees the old bytes or the new ones."""
    temporary = _write(path, chunks, launch)
    try:
        check()
        os.replace(temporary, path)
    except DiskError:
        raise
    except OSError as error:
        raise _disk_error(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)  # it has its final name, or something went wrong


def temporary_path(path: Path, launch: str) -> Path:
    """A name beside `path` that no other file has. Later launches remove such a file."""
    return path.parent / f".{path.name}.{launch}.{secrets.token_hex(4)}{TEMPORARY}"


def temporary_launch(name: str) -> str | None:
    """The launch in the name of a temporary file; None for the name of any other file."""
    found = TEMPORARY_NAME.fullmatch(name)
    return found["launch"] if found else None


def is_claim(name: str) -> bool:
    """Whether a file of this name keeps the name of an image for one launch: see `_link`."""
    return CLAIM_NAME.fullmatch(name) is not None


def _write(path: Path, chunks: Iterable[bytes], launch: str) -> Path:
    """Write the bytes to a temporary file beside `path`, and wait until the disk has them."""
    temporary = temporary_path(path, launch)
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
        raise _disk_error(error, path) from error
    return temporary


def _link(temporary: Path, path: Path, launch: str) -> None:
    """Give the temporary file its final name. Raises FileExistsError where the name is taken;
    `os.rename` would overwrite the file there."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _rename_with_claim(temporary, path, launch)


def _rename_with_claim(temporary: Path, path: Path, launch: str) -> None:
    """The same on a file system without hard links: only the one process that could create the
    claim may rename. Raises FileExistsError, also where another process has the claim."""
    claim = path.parent / f".{path.name}{CLAIM}"
    descriptor = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, launch.encode())
        os.close(descriptor)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        os.rename(temporary, path)
    finally:
        claim.unlink()


def _disk_error(error: OSError, path: Path) -> DiskError:
    return DiskError(error.errno, f"{path}: {error.strerror}")
