"""A folder behind FUSE that fails as a network disk may: while the file ERRNO exists, writes fail
with the error number in it, at the write itself or when the file is closed.

python tests/support/failing_disk.py FOLDER MOUNT ERRNO write|close
"""

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

from mfusepy import FUSE, FuseOSError, Operations


class FailingDisk(Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, folder: Path, number: Path, fails_at: str) -> None:
        self.folder = folder
        self.number = number
        self.fails_at = fails_at

    def _at(self, path: str) -> str:
        return str(self.folder) + path

    def _fail(self, at: str) -> None:
        if at == self.fails_at and self.number.exists():
            raise FuseOSError(int(self.number.read_text()))

    def flush(self, path: str, fh: int) -> int:
        """Called by each `close`."""
        if fcntl.fcntl(fh, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
            self._fail("close")
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path))
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
        times = {f"st_{t}time": getattr(found, f"st_{t}time_ns") for t in "amc"}
        return {**{name: getattr(found, name) for name in names}, **times}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._fail("write")
        # On a file opened to append, `pwrite` appends and ignores the offset.
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._at(path), length)

    def fsync(self, path: str, datasync: bool, fh: int) -> int:
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def link(self, target: str, source: str) -> None:
        os.link(self._at(source), self._at(target))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path), mode)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._at(path), ns=times)


if __name__ == "__main__":
    source, mount, number, fails_at = sys.argv[1:]
    FUSE(FailingDisk(Path(source), Path(number), fails_at), mount, foreground=True)
