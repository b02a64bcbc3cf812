"""Output folders that cannot be made, read or written."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bench import Bench

from runner.errors import ExitCode, FolderError


def test_a_folder_that_cannot_be_made(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bench.output = tmp_path / "file" / "out"
    with pytest.raises(FolderError, match="Not a directory"):
        bench.run()


def test_files_that_may_not_be_read(bench: Bench) -> None:
    bench.run()
    [journal] = (bench.output / ".runner" / "journal").glob("*-00000-*")
    for path in (journal, bench.output / "000001.png"):
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root may read everything")
        for ask in (bench.run, bench.status, bench.plan):
            with pytest.raises(FolderError, match=f"{path.name}: Permission denied"):
                ask()
        path.chmod(0o600)
        journal.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("metadata.jsonl", Path.mkdir),
        ("summary.json", Path.mkdir),
        ("failures.jsonl", os.mkfifo),
        ("manifest.yaml", Path.mkdir),
        (".runner", Path.touch),
        (".runner/locks", Path.touch),
        (".runner/locks/guard", os.mkfifo),
        (".runner/compared", os.mkfifo),
        (".runner/trial.json", os.mkfifo),
        (".runner/model.json", Path.mkdir),
        (".runner/stop", Path.mkdir),
        (".runner/locks/all.json", os.mkfifo),
        ("000001", Path.touch),
        ("000000/000001.png", os.mkfifo),
        ("", Path.touch),
    ],
)
def test_names_of_ours_that_are_something_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None]
) -> None:
    """A folder or a FIFO instead of a file, a file instead of a folder: one line, and no hang."""
    monkeypatch.setattr("runner.folder.owners.DEAD_AFTER_S", 0.5)
    monkeypatch.setattr("runner.folder.owners.GLANCE_S", 0.5)
    bench.values["output"] = {"images_per_folder": 2}
    path = bench.output / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    if name.endswith("all.json"):  # a lock without an owner
        assert bench.run(limit=1) is ExitCode.COMPLETE
        return
    with pytest.raises(FolderError, match=re.escape(path.name)):
        bench.run()
    if name not in (".runner/stop", "000000/000001.png"):
        with pytest.raises(FolderError, match=re.escape(path.name)):
            bench.status()
