"""Full, read-only and broken disks: one line, whole files, resumable."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import SUPPORT
from support.jobs import Ended, Job, ended, print_of, running, wait_for

from runner.errors import DiskError
from runner.folder import space
from runner.folder.journal import Journal, merge
from runner.folder.paths import OutputFolder
from runner.manifest.schema import OutputSpec

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """1 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


# Case 30.
@needs_root
@pytest.mark.parametrize("processes", [1, 2])
def test_one_megabyte(tmp_path: Path, small_disk: Path, processes: int) -> None:
    # Random pixels of 128 × 128 take 49 kB: about 18 fit.
    job = Job(tmp_path, 30, output=small_disk / "out", parameters={"height": 128, "width": 128})
    end = job.run(processes=processes)
    lines = [line for line in end.err.splitlines() if line.startswith("runner:")]
    assert end.code == 1
    assert any("free, 30 images may take" in line for line in lines)
    problems = [line for line in lines if "No space left on device" in line]
    assert 1 <= len(problems) <= processes
    assert "run the same command again" in problems[0]
    assert "File" not in end.err or processes > 1  # torchrun has a traceback of its own
    assert job.partial_files() == []
    assert 10 < len(job.images()) < 30
    assert job.status() == 75  # answers on a full disk, too
    before = job.pixels()
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert job.run(processes=processes).code == 0
    assert len(job.images()) == 30
    assert before.items() <= job.pixels().items()


@needs_root
def test_no_inode_left(tmp_path: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=40", small_disk], check=True)
    job = Job(tmp_path, 60, output=small_disk / "out")
    end = job.run()
    assert end.code == 1
    assert "No space left on device" in end.err
    assert job.partial_files() == []
    assert 10 < len(job.images()) < 60
    again = job.run()
    assert again.code == 1
    assert again.err.count("No space left on device") == 1
    subprocess.run(["mount", "-o", "remount,nr_inodes=400,size=8m", small_disk], check=True)
    assert job.run().code == 0


@needs_root
def test_a_disk_that_is_read_only(tmp_path: Path, small_disk: Path) -> None:
    """Refused before work began, whatever there is to do."""
    job = Job(tmp_path, 60, output=small_disk / "out")

    def is_refused(name: str, status: int) -> None:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        refused = job.run()
        assert refused.code == 2
        words = f"{name}: Read-only file system; make it writable, or use another folder\n"
        assert refused.err.endswith(words)
        assert job.status() == status
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)

    is_refused("out", 75)
    job.run(hooks={"kill": {"prompt 9": 1}})
    is_refused("guard", 75)
    assert job.run().code == 0
    is_refused("guard", 0)


@needs_root
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """As on a quota or a lost permission: no image of it counts as failed."""
    job = Job(tmp_path, 300)
    with running(job.start(hooks={"seconds": 0.2})) as process:
        job.wait_for_images(3)
        subprocess.run(["chattr", "+i", job.output], check=True)
        try:
            end = ended(process)
        finally:
            subprocess.run(["chattr", "-i", job.output], check=True)
    assert end.code == 1
    assert end.err.count("Operation not permitted") == 1
    assert job.status() == 75
    assert job.failures() == []
    assert job.run().code == 0


def test_a_disk_without_room_for_one_image_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 3, parameters={"height": 1024, "width": 1024})
    from runner.manifest.load import load
    from runner.plan import Plan

    loaded = load(job.manifest)
    plan = Plan(loaded.manifest, loaded.prompts, loaded.root)
    folder = OutputFolder(tmp_path, OutputSpec())
    space.check(folder)
    assert space.notice(folder, plan, 3) is None
    assert "images may take" in str(space.notice(folder, plan, 10**9))
    monkeypatch.setattr(space, "_free", lambda folder: (1000, 100))
    with pytest.raises(DiskError, match=r"No space left on device \(1000 bytes, 100 files\)"):
        space.check(folder)
    monkeypatch.setattr(space, "_free", lambda folder: (10**12, 0))
    with pytest.raises(DiskError, match="0 files"):
        space.check(folder)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_journal_line_is_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    journal = Journal(tmp_path, 1, 0, "5f3a90c2")
    journal.done(0, print_of(0), 1, 2, {})
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 20:
            return write(descriptor, data[:20])  # the disk takes a part …
        raise OSError(number, os.strerror(number))  # … and no more

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DiskError, match="run the same command again"):
            journal.done(1, print_of(1), 1, 2, {})
    journal.done(2, print_of(2), 1, 2, {})
    journal.close()
    record = merge(tmp_path, 3)
    assert sorted(record.done) == [0, 2]
    assert not record.unclean
    assert journal.path.read_text().count("\n") == 3


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def lacks(*tools: str) -> pytest.MarkDecorator:
    missing = [*(["root"] if os.geteuid() else []), *(t for t in tools if not shutil.which(t))]
    return pytest.mark.skipif(bool(missing), reason=f"a disk of its own needs {', '.join(missing)}")


def is_stopped_and_goes_on(job: Job, end: Ended, words: str, mend: Callable[[], None]) -> None:
    """One line, whole images, and the rest after the disk is mended."""
    assert end.code == 1
    assert end.err.count(words) == 1, end.err
    assert "Traceback" not in end.err
    assert job.partial_files() == []
    assert 2 < len(job.images()) < len(job.prompts)
    assert job.status() == 75
    before = job.pixels()
    mend()
    assert job.run().code == 0
    assert len(job.images()) == len(job.prompts)
    assert before.items() <= job.pixels().items()
    assert job.failures() == []


@pytest.mark.cluster
class TestRealDisks:
    """What the tests above put in place of the system's answers, from real file systems."""

    @lacks("mkfs.btrfs", "btrfs")
    def test_a_quota(self, tmp_path: Path) -> None:
        image, disk_ = tmp_path / "image", tmp_path / "disk"
        disk_.mkdir()
        subprocess.run(["truncate", "-s", "128M", image], check=True)
        subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
        mount("-o", "loop", image, disk_)
        try:
            for words in (f"quota enable {disk_}", f"subvolume create {disk_}/out"):
                subprocess.run(["btrfs", *words.split()], check=True, capture_output=True)
            limit = ["btrfs", "qgroup", "limit"]
            subprocess.run([*limit, "1M", disk_ / "out"], check=True)
            job = Job(tmp_path, 40, output=disk_ / "out", parameters={"height": 128, "width": 128})
            is_stopped_and_goes_on(
                job,
                job.run(),
                "Disk quota exceeded",
                lambda: subprocess.run([*limit, "none", disk_ / "out"], check=True),
            )
        finally:
            subprocess.run(["umount", "-l", disk_], check=True)

    @lacks("mkfs.ext4")
    def test_a_device_that_is_smaller_than_it_says(self, tmp_path: Path) -> None:
        """The disk under the disk is full: what was written fails later, when it is synced."""
        under, disk_ = tmp_path / "under", tmp_path / "disk"
        under.mkdir()
        disk_.mkdir()
        mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", under)
        try:
            subprocess.run(["truncate", "-s", "32M", under / "image"], check=True)
            make = ["mkfs.ext4", "-q", "-O", "^has_journal", under / "image"]
            subprocess.run(make, check=True, capture_output=True)
            mount("-o", "loop", under / "image", disk_)
            job = Job(tmp_path, 100, output=disk_ / "out", parameters={"height": 128, "width": 128})
            end = job.run()
            is_stopped_and_goes_on(
                job, end, "No space left on device", lambda: mount("-o", "remount,size=40m", under)
            )
        finally:
            subprocess.run(["umount", "-l", disk_])
            subprocess.run(["umount", "-l", under])

    @lacks("fusermount3")
    @pytest.mark.parametrize(
        ("number", "at"), [(errno.EDQUOT, "close"), (errno.EIO, "close"), (errno.EIO, "write")]
    )
    def test_writes_that_fail(self, tmp_path: Path, number: int, at: str) -> None:
        under, disk_, mark = tmp_path / "under", tmp_path / "disk", tmp_path / "errno"
        under.mkdir()
        disk_.mkdir()
        program = SUPPORT / "failing_disk.py"
        command = [sys.executable, program, under, disk_, mark, at]
        with running(subprocess.Popen(command, text=True)):
            wait_for(disk_.is_mount)
            try:
                job = Job(tmp_path, 300, output=disk_ / "out")
                with running(job.start(hooks={"seconds": 0.2})) as process:
                    job.wait_for_images(4)
                    mark.write_text(str(number))
                    end = ended(process)
                is_stopped_and_goes_on(job, end, os.strerror(number), mark.unlink)
            finally:
                subprocess.run(["umount", "-l", disk_], check=True)
