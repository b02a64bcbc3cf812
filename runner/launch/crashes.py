"""Images during which a process died by itself, counted over the restarts of one launcher.

Such an image is tried once more, in a batch of its own. A second death makes it a failure. A death
counts only on evidence: a fatal signal of the process's own (a segfault, an abort), an exception,
or the kernel's out-of-memory killer. A kill from outside leaves none of these, so it marks no
image. The counts are in the launcher's store, so a new command starts without them.
"""

import contextlib
import faulthandler
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from runner.errors import RunnerError
from runner.launch.store import Store, StoreLostError

__all__ = ["Crashes", "deaths", "quarantined", "split_batch"]

MAX_DEATHS = 2
COUNTERS = Path("/proc/vmstat")  # of the kernel


class _Note(msgspec.Struct):
    """What a rank is at, for the ranks of the next restart."""

    images: list[int] = []
    trace: str = ""  # the name of a file that is empty unless a fatal signal came
    is_own: bool = False  # an exception ended the process
    host: str = ""
    oom_kills: int = 0  # on that host, before the images


NOTE, COUNTS = msgspec.json.Decoder(_Note), msgspec.json.Decoder(dict[int, int])
NUMBER = msgspec.json.Decoder(int)


class Crashes:
    """Notes in the store which images this rank works on."""

    def __init__(self, store: Store, rank: int, trace: Path | None = None) -> None:
        """`trace`: a new file for the trace of a fatal signal; None where nothing restarts us."""
        self._store = store.command
        self._key = f"at/{rank}"
        self._trace = trace
        self._file: BinaryIO | None = None

    def __enter__(self) -> "Crashes":
        if self._trace is not None:
            with contextlib.suppress(OSError):
                self._file = self._trace.open("xb")
                faulthandler.enable(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and self._trace is not None:
            faulthandler.disable()
            self._file.close()
            with contextlib.suppress(OSError):
                self._trace.unlink()

    @contextlib.contextmanager
    def during(self, images: Sequence[int]) -> Iterator[None]:
        """Note these images. The note stays if the process dies here, or ends by an exception."""
        trace = self._trace.name if self._trace else ""
        note = _Note(list(images), trace, host=socket.gethostname(), oom_kills=_oom_kills())
        self._write(note)
        try:
            yield
        except RunnerError:
            self.clear()  # the disk or a stop: not the fault of the images
            raise
        except BaseException:
            note.is_own = True
            self._write(note)
            raise
        self.clear()

    def clear(self) -> None:
        """Remove the note. Also called when asked to stop: a launcher that ends this rank because
        another one died sends TERM first."""
        self._write(_Note())

    def _write(self, note: _Note) -> None:
        with contextlib.suppress(StoreLostError):
            self._store.set(self._key, msgspec.json.encode(note).decode())


def deaths(store: Store, world_size: int, folder: Path) -> dict[int, int]:
    """Image index → how often processes of this command died by themselves with it. For rank 0, at
    the start: it adds the notes that the ranks before the restart left. `folder` has the traces."""
    common = store.command
    with contextlib.suppress(msgspec.MsgspecError):  # others may write to the store
        counts = COUNTS.decode(common.get("deaths") or "{}")
        died = set[int]()
        for rank in range(NUMBER.decode(common.get("ranks") or "0")):
            note = NOTE.decode(common.get(f"at/{rank}") or "{}")
            if _has_evidence(note, folder):
                died.update(note.images)
            common.set(f"at/{rank}", "{}")
        counts |= {index: counts.get(index, 0) + 1 for index in died}
        common.set("deaths", msgspec.json.encode(counts).decode())
        common.set("ranks", str(world_size))
        return counts
    return {}


def _has_evidence(note: _Note, folder: Path) -> bool:
    if note.is_own:
        return True
    if note.trace:
        with contextlib.suppress(OSError):
            if (folder / os.path.basename(note.trace)).lstat().st_size > 0:
                return True
    return note.host == socket.gethostname() and note.oom_kills < _oom_kills()


def _oom_kills() -> int:
    """How many processes the kernel of this host has killed for their memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in COUNTERS.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def quarantined(counts: Mapping[int, int]) -> list[int]:
    """The images that are not tried again."""
    return [index for index, count in counts.items() if count >= MAX_DEATHS]


def split_batch(indices: Sequence[int], counts: Mapping[int, int]) -> list[tuple[int, ...]]:
    """The batch as one call; or one call for each image, if a process died in the batch."""
    if not any(index in counts for index in indices):
        return [tuple(indices)]
    return [(index,) for index in indices if counts.get(index, 0) < MAX_DEATHS]
