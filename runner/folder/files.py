"""Write files that are whole or absent, even where the process is killed meanwhile."""

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from runner.errors import DiskError

__all__ = [
    "DISK_ERRORS",
    "again",
    "can_rename",
    "create",
    "disk_errors",
    "is_claim",
    "make_folder",
    "move",
    "moving_fingerprint",
    "moving_path",
    "no_check",
    "replace",
    "temporary_launch",
    "temporary_path",
]

TEMPORARY = ".part"  # the ending of a file that is being written
# .000001.png.5f3a90c2.0a0b0c0d.part: the file's name, the launch that writes it, random digits
TEMPORARY_NAME = re.compile(r"\..+\.(?P<launch>[0-9a-f]{8})\.[0-9a-f]{8}\.part")
CLAIM = ".claim"  # the ending of a file whose content is the launch that may take the name
CLAIM_NAME = re.compile(r"\..+\.png\.claim", re.ASCII)  # only images are claimed
# .5f3a…90c2.0a0b0c0d.moving: an image on its way, its fingerprint and random digits
MOVING_NAME = re.compile(r"\.(?P<fingerprint>[0-9a-f]{32})\.[0-9a-f]{8}\.moving", re.ASCII)
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
TRANSIENT = {errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOENT}  # of a network disk
NO_RENAME = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV}
TRIES, PAUSE_S = 3, 0.5
T = TypeVar("T")
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
    with disk_errors(path, but=FileExistsError):
        _again_if_possible(chunks, lambda: _create(path, chunks, launch, check))


def _create(path: Path, chunks: Iterable[bytes], launch: str, check: Callable[[], None]) -> None:
    temporary = _write(path, chunks, launch)
    try:
        check()
        _link(temporary, path, launch)
    finally:
        temporary.unlink(missing_ok=True)


def replace(
    path: Path, chunks: Iterable[bytes], launch: str, check: Callable[[], None] = no_check
) -> None:
    """As `create`, but over an existing file: a reader sees the old bytes or the new ones."""
    with disk_errors(path):
        _again_if_possible(chunks, lambda: _replace(path, chunks, launch, check))


def _replace(path: Path, chunks: Iterable[bytes], launch: str, check: Callable[[], None]) -> None:
    temporary = _write(path, chunks, launch)
    try:
        check()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # it has its final name, or something went wrong


def move(source: Path, target: Path, launch: str) -> None:
    """Give a file another name; content and times stay. A process that is killed meanwhile may
    leave both names for the one file.

    Raises FileExistsError where the name is taken, and DiskError for any other error.
    """
    with disk_errors(target, but=FileExistsError):
        make_folder(target.parent, parents=False)
        again(lambda: _link(source, target, launch), but=FileExistsError)
        source.unlink(missing_ok=True)  # without links it was renamed


@contextlib.contextmanager
def disk_errors(path: Path, but: type[OSError] = DiskError) -> Iterator[None]:
    """Raises DiskError for any OSError that is raised inside, except for one that is `but`."""
    try:
        yield
    except (but, DiskError):
        raise
    except OSError as error:
        raise DiskError(error.errno, f"{path}: {error.strerror}") from error


def again(call: Callable[[], T], but: type[OSError] = DiskError) -> T:
    """Call up to TRIES times where a network disk fails for a moment. An error `but` is raised at
    once."""
    for left in reversed(range(TRIES)):
        try:
            return call()
        except OSError as error:
            if isinstance(error, (but, DiskError)) or error.errno not in TRANSIENT or not left:
                raise
        time.sleep(PAUSE_S)
    raise AssertionError("unreachable")


def _again_if_possible(chunks: Iterable[bytes], write: Callable[[], None]) -> None:
    """A generator gives its chunks once."""
    if isinstance(chunks, tuple):
        again(write)
    else:
        write()


def make_folder(path: Path, *, parents: bool = True) -> None:
    """Make a folder, and its parents, where they are not there yet. Raises OSError.

    `Path.mkdir(exist_ok=True)` fails where a network disk says that the name is taken, and a moment
    later still that there is no folder.
    """
    try:
        again(lambda: path.mkdir(parents=parents))
    except FileExistsError:
        for _ in range(TRIES - 1):
            if _is_folder(path):
                return
            time.sleep(PAUSE_S)
        if not _is_folder(path):
            raise


def _is_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(path.stat().st_mode)
    return False


def can_rename(folder: Path) -> bool:
    """Whether files in a folder can be renamed, over another one too: without that nothing gets its
    final name. Any other fault shows when the first file is written."""
    one, two = (temporary_path(folder / "probe", "0" * 8) for _ in range(2))
    try:
        one.touch()
        two.touch()
        os.replace(one, two)
    except OSError as error:
        return error.errno not in NO_RENAME
    finally:
        for path in (one, two):
            with contextlib.suppress(OSError):
                path.unlink()
    return True


def temporary_path(path: Path, launch: str) -> Path:
    """A name beside `path` that no other file has. Later launches remove such a file."""
    return path.parent / f".{path.name}.{launch}.{secrets.token_hex(4)}{TEMPORARY}"


def temporary_launch(name: str) -> str | None:
    """The launch in the name of a temporary file; None for the name of any other file."""
    found = TEMPORARY_NAME.fullmatch(name)
    return found["launch"] if found else None


def moving_path(folder: Path, fingerprint: str) -> Path:
    """A name for an image that has to make room. It is not removed, unlike a temporary file."""
    return folder / f".{fingerprint}.{secrets.token_hex(4)}.moving"


def moving_fingerprint(name: str) -> str | None:
    """The fingerprint in such a name; None for the name of any other file."""
    found = MOVING_NAME.fullmatch(name)
    return found["fingerprint"] if found else None


def is_claim(name: str) -> bool:
    """Whether a file of this name keeps the name of an image for one launch: see `_link`."""
    return CLAIM_NAME.fullmatch(name) is not None


def _write(path: Path, chunks: Iterable[bytes], launch: str) -> Path:
    """Write the bytes to a temporary file beside `path`, and wait until the disk has them."""
    temporary = temporary_path(path, launch)
    make_folder(path.parent, parents=False)  # the disk may be gone: do not write elsewhere
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _link(temporary: Path, path: Path, launch: str) -> None:
    """Give the temporary file its final name. Raises FileExistsError where the name is taken;
    `os.rename` would overwrite the file there."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network disk may answer a link that it sent twice with an error for the second time.
        if not os.path.samestat(temporary.lstat(), path.lstat()):
            raise
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
