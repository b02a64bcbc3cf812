"""A job that was paused until another one took its folder over, and hosts whose clocks differ."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jobs import ENVIRONMENT, Job, ended, running, workers

from runner.errors import TakenOverError
from runner.folder import files, owners, png
from runner.folder.clear import clear
from runner.folder.journal import Journal, merge
from runner.folder.lock import FolderLock, Owned
from runner.folder.paths import OutputFolder
from runner.folder.survey import Survey
from runner.manifest.schema import OutputSpec
from runner.plan import Plan


def signal_all(pid: int, number: int) -> None:
    for process in (*(worker.pid for worker in workers(pid)), pid):
        os.kill(process, number)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and inode of every file outside .runner."""
    return {
        path.name: (path.read_bytes(), path.stat().st_ino)
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize(("processes", "restarts"), [(1, 0), (2, 0), (2, 2)])
@pytest.mark.parametrize("is_over", [True, False])
def test_a_paused_job_leaves_the_new_owner_alone(
    tmp_path: Path, processes: int, restarts: int, is_over: bool
) -> None:
    """It wakes up after the new owner's end, or while the new owner works; nor does a restart by
    its launcher make the images anew."""
    paused = Job(tmp_path / "a", 16)
    assert paused.run("--limit", "8").code == 0
    new = Job(tmp_path / "b", 16, output=paused.output, seed=90)
    paused_hooks = {"seconds": 0.3, "machine": "a"}
    new_hooks = {"seconds": 0.1 if is_over else 0.5, "machine": "b", "dead_after": 4}
    options = {"processes": processes, "restarts": restarts, "hooks": paused_hooks}
    with running(paused.start("--regenerate", **options)) as first:
        paused.wait_for_images(10)
        signal_all(first.pid, signal.SIGSTOP)
        with running(new.start("--regenerate", hooks=new_hooks)) as second:
            if is_over:
                assert ended(second).code == 0
            else:
                new.wait_for_process_at(3)
            before = content(paused.output)
            signal_all(first.pid, signal.SIGCONT)
            end = ended(first, 60)
            assert end.code == (75 if processes == 1 else 1)
            lines = [line for line in end.err.splitlines() if line.startswith("runner: ")]
            assert sum("another job took this folder over" in line for line in lines) == 1, lines
            if is_over:
                assert content(paused.output) == before
            else:
                assert ended(second).code == 0
    assert new.status() == 0
    assert {line["seed"] for line in new.metadata()} == set(range(90, 106))
    assert not list((new.output / ".runner" / "locks").glob("*.json"))
    assert new.partial_files() == []


def owned(folder: Path, part: tuple[int, int] | None = None, launch: str = "a") -> FolderLock:
    return FolderLock(OutputFolder(folder, OutputSpec()), launch, part)


def test_nothing_gets_its_name_without_the_lock(tmp_path: Path) -> None:
    lock = owned(tmp_path)
    lock.acquire()
    png.commit(tmp_path / "000000.png", b"ours", "a", lock.check)
    lock.path.write_text(lock.path.read_text().replace('"launch": "a"', '"launch": "b"'))
    for write in (png.commit, png.overwrite):
        with pytest.raises(TakenOverError, match="took this folder over"):
            write(tmp_path / "000001.png", b"not ours", "a", lock.check)
    with pytest.raises(TakenOverError):
        files.replace(tmp_path / "summary.json", (b"{}",), "a", lock.check)
    lock.release()
    assert lock.path.exists()  # it is the other's
    lock.path.unlink()
    with pytest.raises(TakenOverError):
        Owned.of(lock.folder, "a", None).check()
    assert {path.name for path in tmp_path.iterdir()} == {"000000.png", ".runner"}


def test_the_owner_learns_that_it_lost_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not keep the new owner's lock alive."""
    monkeypatch.setattr(owners, "HEARTBEAT_S", 0.05)
    is_lost = threading.Event()
    folder = OutputFolder(tmp_path, OutputSpec())
    lock = FolderLock(folder, "a", None, on_lost=lambda _: is_lost.set())
    lock.acquire()
    new = lock.path.with_suffix(".new")
    new.write_text(lock.path.read_text().replace('"launch": "a"', '"launch": "b"'))
    os.utime(new, (1, 1))
    new.rename(lock.path)
    assert is_lost.wait(5)
    assert lock.path.stat().st_mtime == 1
    lock.release()


@pytest.mark.parametrize("clock", [3600.0, -3600.0])
def test_a_clock_that_is_wrong_ends_nobody(tmp_path: Path, clock: float) -> None:
    """A shard keeps its living sibling's temporary files, and `status` sees that it runs."""
    job = Job(tmp_path, 24)
    hooks = {"seconds": 0.1, "machine": "a", "clock": clock}
    job.hold(22)  # the last image of the first shard, so that it lives to the end
    with running(job.start("--shard", "1/2", hooks=hooks)) as first:
        job.wait_for_images(1)
        lock = job.output / ".runner" / "locks" / "1-of-2.json"
        assert abs(lock.stat().st_mtime - time.time()) < 60  # made without a heartbeat yet
        launch = json.loads(lock.read_text())["launch"]
        unfinished = job.output / f".000023.png.{launch}.0a0b0c0d.part"
        unfinished.touch()
        hooks = {"machine": "b", "dead_after": 8}
        assert ended(job.start("--shard", "2/2", hooks=hooks)).code == 0
        assert first.poll() is None
        assert abs(lock.stat().st_mtime - time.time()) > 3000
        assert unfinished.exists()
        words = [sys.executable, "-m", "runner", "status", str(job.manifest)]
        status = subprocess.run(words, env=ENVIRONMENT, capture_output=True, check=True)
        assert json.loads(status.stdout)["outcome"] == "running"
        job.release(22)
        assert ended(first).code == 0
    assert job.run().code == 0
    assert job.partial_files() == []


def test_a_dead_owner_with_a_time_to_come_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "GLANCE_S", 0.5)
    monkeypatch.setattr(owners, "DEAD_AFTER_S", 0.5)
    lock = owned(tmp_path)
    for part in (None, (1, 2)):
        far = owned(tmp_path, part, "far")
        far.path.parent.mkdir(parents=True, exist_ok=True)
        far.path.write_text(json.dumps({**owners.describe("far", part), "machine": "far"}))
        os.utime(far.path, (time.time() + 3600, time.time() + 3600))
    assert owners.live_launches(lock.folder) == set()
    assert owners.live_launches(lock.folder, sure=True) == set()
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start < 1  # all are watched at the same time
    lock.release()


def test_a_sibling_that_began_meanwhile_is_not_taken_for_dead(
    tmp_path: Path, plan: Callable[..., Plan]
) -> None:
    """Neither its temporary files nor its journal, though it was not there at the first look."""
    mine, sibling = owned(tmp_path, (1, 2), "0000beef"), owned(tmp_path, (2, 2), "5f3a90c2")
    mine.acquire()
    sibling.acquire()
    unfinished = tmp_path / ".000000.png.5f3a90c2.0a0b0c0d.part"
    dead = tmp_path / ".000000.png.0000dead.0a0b0c0d.part"
    for path in (unfinished, dead):
        path.touch()
    Journal(mine.folder.journals, 1, 0, "5f3a90c2").done(0, "0" * 32, 1, 1, {})
    record = merge(mine.folder.journals, 1)
    found = Survey(
        bytearray(1), bytearray(1), temporaries=[(unfinished, "5f3a90c2"), (dead, "0000dead")]
    )
    journal = Journal(mine.folder.journals, 2, 0, "0000beef")
    made = plan(model="demo", prompts=["a"])
    clear(mine.folder, found, journal, record, set(), bytearray(1), made, mine.check)
    assert (unfinished.exists(), dead.exists()) == (True, False)
    assert record.unclean == {"000001-00000-5f3a90c2.jsonl"}
    sibling.release()
    mine.release()
