"""One job at a time on a folder, with real processes as owners."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runner.errors import FolderError
from runner.folder import owners
from runner.folder.lock import FolderLock
from runner.folder.owners import live_launches
from runner.folder.paths import OutputFolder
from runner.manifest.schema import OutputSpec

HOLD = """
import sys, time
from pathlib import Path
from runner.folder.paths import OutputFolder
from runner.folder.lock import FolderLock
from runner.manifest.schema import OutputSpec
shard = tuple(map(int, sys.argv[2].split("/"))) if len(sys.argv) > 2 else None
FolderLock(OutputFolder(Path(sys.argv[1]), OutputSpec()), "other", shard).acquire()
print("held", flush=True)
time.sleep(3600)  # the test ends it
"""


def hold(folder: Path, *shard: str) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *shard], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    return owner


def lock(folder: Path, shard: tuple[int, int] | None = None, launch: str = "mine") -> FolderLock:
    return FolderLock(OutputFolder(folder, OutputSpec()), launch, shard)


# Case 21: the second job on a folder is refused while the first lives.
def test_a_living_owner_refuses_and_a_dead_one_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = hold(tmp_path)
    try:
        with pytest.raises(FolderError, match=f"process {owner.pid} on "):
            lock(tmp_path).acquire()
        with pytest.raises(FolderError, match="another job"):
            lock(tmp_path, (1, 2)).acquire()
        assert live_launches(OutputFolder(tmp_path, OutputSpec())) == {"other"}
    finally:
        owner.kill()
        owner.wait()
    mine = lock(tmp_path)
    with monkeypatch.context() as patch:  # its process is gone: there is no wait for a heartbeat
        patch.setattr(owners.time, "sleep", lambda _: pytest.fail("waited"))
        mine.acquire()
    assert live_launches(mine.folder) == {"mine"}
    mine.release()
    assert live_launches(mine.folder) == set()


def test_shards_of_the_same_number_work_side_by_side(tmp_path: Path) -> None:
    owner = hold(tmp_path, "1/2")
    try:
        second = lock(tmp_path, (2, 2))
        second.acquire()
        for shard in (None, (1, 2), (1, 3)):
            with pytest.raises(FolderError, match="another job"):
                lock(tmp_path, shard, "third").acquire()
        second.release()
    finally:
        owner.kill()
        owner.wait()


def foreign(folder: Path) -> Path:
    """The lock of an owner on another machine."""
    path = folder / ".runner" / "locks" / "all.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"launch": "far", "host": "far", "machine": "x", "pid": 1}))
    return path


def test_a_heartbeat_from_another_machine_is_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = foreign(tmp_path)
    os.utime(path, (1, 1))  # clocks are not compared
    beating = threading.Event()

    def beat() -> None:
        while not beating.wait(0.3):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(FolderError, match="on far"):
            lock(tmp_path).acquire()
    finally:
        beating.set()
        thread.join()
    monkeypatch.setattr(owners, "DEAD_AFTER_S", 1.0)
    mine = lock(tmp_path)
    mine.acquire()
    mine.release()


def test_of_many_that_start_at_once_one_wins(tmp_path: Path) -> None:
    owners = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        held = [owner.stdout.readline() for owner in owners if owner.stdout]
        assert held.count("held\n") == 1
        assert held.count("") == 5
    finally:
        for owner in owners:
            owner.kill()
            owner.wait()
