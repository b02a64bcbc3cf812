"""What network disks do: answers that come twice, are late, or fail for a moment."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bench import Bench

from runner.errors import DiskError, ExitCode, FolderError
from runner.folder import files
from runner.folder.journal import Journal, merge
from runner.folder.paths import OutputFolder
from runner.manifest.schema import OutputSpec

PRINT = f"{7:032x}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSE_S", 0.01)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def failing_once(real: Callable[..., Any], number: int = errno.ESTALE) -> Callable[..., Any]:
    """The function, whose first call fails."""
    calls: list[int] = []

    def call(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            fail(number)
        return real(*given, **named)

    return call


def test_a_link_that_was_made_twice_is_ours(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(*given: Any) -> None:
        link(*given)
        link(*given)

    monkeypatch.setattr(os, "link", twice)
    assert bench.run() is ExitCode.COMPLETE
    assert bench.status()["done"] == 5
    (bench.output / "000000.png").rename(bench.output / "mine.png")
    with pytest.raises(FileExistsError):
        files.create(bench.output / "mine.png", (b"x",), "launch")


@pytest.mark.parametrize("name", ["link", "replace", "fsync"])
def test_a_moment_without_the_server_costs_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = getattr(os, name)
    monkeypatch.setattr(os, name, failing_once(real))
    path = bench.output / "000000.png"
    path.parent.mkdir()
    (files.replace if name == "replace" else files.create)(path, (b"data",), "launch")
    assert path.read_bytes() == b"data"
    assert [entry.name for entry in path.parent.iterdir()] == ["000000.png"]
    monkeypatch.setattr(os, name, lambda *_: fail(errno.ESTALE))
    with pytest.raises(DiskError, match="; run the same command again"):
        (files.replace if name == "replace" else files.create)(path, (b"data",), "launch")


def test_a_journal_that_the_server_forgot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1, 0, "5f3a90c2")
    journal.done(0, PRINT, 1, 1, {})
    write = os.write
    monkeypatch.setattr(os, "write", failing_once(write))
    journal.done(1, PRINT, 1, 1, {})
    monkeypatch.setattr(os, "write", lambda to, data: write(to, data[:9]) if len(data) > 9 else 9)
    monkeypatch.undo()
    journal.close()
    assert sorted(merge(tmp_path, 5).done) == [0, 1]
    assert not merge(tmp_path, 5).unclean


def test_a_folder_that_is_not_seen_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mkdir` says that the name is taken, and `stat` does not see a folder yet."""
    bench.output.mkdir()
    is_dir, calls = stat.S_ISDIR, []

    def late(mode: int) -> bool:
        calls.append(mode)
        return len(calls) > 2 and is_dir(mode)

    monkeypatch.setattr(Path, "is_dir", failing_once(Path.is_dir, errno.ENOENT))
    with monkeypatch.context() as patch:
        patch.setattr(files.stat, "S_ISDIR", late)
        files.make_folder(bench.output)
        assert len(calls) == 3
    (bench.output / "file").touch()
    with pytest.raises(FileExistsError):
        files.make_folder(bench.output / "file")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_rename_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for name in ("link", "rename", "replace"):
        monkeypatch.setattr(os, name, lambda *_: fail(number))
    with pytest.raises(FolderError, match="this file system cannot rename files; use another"):
        bench.run()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "; free space, then run the same command again"),
        (errno.EIO, "; check the disk, then run the same command again"),
        (errno.EROFS, "; make it writable, then run the same command again"),
        (errno.ENXIO, "; run the same command again"),
    ],
)
def test_the_remedy_fits_the_fault(number: int, remedy: str) -> None:
    assert str(DiskError(number, "a/b\nc: words")) == f"a/b\\nc: words{remedy}"


def test_reports_that_were_never_finished(bench: Bench) -> None:
    """A process was killed while it wrote them; `status` writes them again."""
    assert bench.run() is ExitCode.COMPLETE
    folder = OutputFolder(bench.output, OutputSpec())
    left = [
        bench.output / ".metadata.jsonl.5f3a90c2.0a0b0c0d.part",
        bench.output / ".summary.json.5f3a90c2.0a0b0c0d.part",
        folder.locks / ".all.json.5f3a90c2.0a0b0c0d.part",
        folder.own / ".refused.5f3a90c2.0a0b0c0d.part",
    ]
    for path in left:
        path.touch()
    folder.summary.unlink()
    assert bench.status()["outcome"] == "complete"
    assert [path.exists() for path in left] == [False, False, True, True]
    assert bench.run() is ExitCode.COMPLETE
    assert not any(path.exists() for path in left)


def test_reports_that_begin_with_a_giant_prompt(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, OutputSpec())
    giant = "x" * (17 << 20)
    start = '{"file_name":"000000.png","index":0,"prompt_index":0,"prompt":"'
    folder.metadata.write_text(start + giant + '"}\n')
    folder.failures.write_text('{"index":0,"prompt":"' + giant + '"}\n')
    folder.check()
    folder.failures.write_text('{"text":"' + giant + '"}\n')
    with pytest.raises(FolderError, match="not written by the runner"):
        folder.check()


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "summary.json").write_text("{}")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)

    def denied(path: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(FolderError, match="summary.json: Permission denied; make it readable, or"):
        OutputFolder(tmp_path, OutputSpec()).check()
