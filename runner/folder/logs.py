"""The log file of a rank: what it said, and what the libraries said to it."""

import contextlib
import logging
import os
import socket
import stat
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from runner.folder import files
from runner.folder.paths import OutputFolder
from runner.launch.layout import Part
from runner.launch.world import World
from runner.say import note, write_also, writes_json

__all__ = ["keep_log"]

MOST_BYTES, OLDER_FILES = 10 * 2**20, 3


def keep_log(folder: OutputFolder, world: World, launch: str, part: Part | None) -> None:
    """Write from now on what this process says to its log file, and what it said so far. A disk
    that takes no log harms nothing else."""
    path = folder.log(world.rank, part)
    with contextlib.suppress(OSError):
        files.make_folder(path.parent)
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            return  # a link may lead anywhere, and a FIFO would block
        _cut_torn_line(path)
        handler = _LogFile(path)
        if _is_of_other_format(path):
            handler.doRollover()  # a file is JSON as a whole, or none of it
        write_also(handler.write)
        place = f"process {os.getpid()} on {socket.gethostname()}"
        note(f"launch {launch}: rank {world.rank} of {world.world_size}, {place}")


class _LogFile(RotatingFileHandler):
    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=OLDER_FILES, encoding="utf-8")

    def write(self, line: str) -> None:
        self.handle(logging.LogRecord("", logging.INFO, "", 0, line, None, None))

    def handleError(self, record: logging.LogRecord) -> None:
        """The disk may be full: go on without."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return open(os.open(self.baseFilename, flags, 0o666), "a", encoding="utf-8")


def _is_of_other_format(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(1)
    return bool(start) and (start == b"{") != writes_json()


def _cut_torn_line(path: Path) -> None:
    """A process that was killed may have written a part of its last line."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - MOST_BYTES)
        file.seek(start)
        whole = start + file.read().rfind(b"\n") + 1
        if whole < end:
            file.truncate(whole)
