"""The log file of a rank: whole lines, older files, and nothing that a disk could break."""

import json
import os
from pathlib import Path
from typing import TextIO

import pytest

from runner import say as voice
from runner.folder import logs
from runner.folder.logs import keep_log
from runner.folder.paths import OutputFolder
from runner.launch.world import World
from runner.manifest.schema import OutputSpec
from runner.say import note, say, speak_as


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OutputFolder:
    monkeypatch.setattr(voice, "_voice", voice._Voice())
    speak_as(0, is_logging=True)
    folder = OutputFolder(tmp_path / "out", OutputSpec())
    folder.own.mkdir(parents=True)
    return folder


def test_a_torn_line_is_removed_and_the_rest_goes_on(folder: OutputFolder) -> None:
    path = folder.log(0, (3, 8))
    path.parent.mkdir()
    path.write_text("one\ntwo\nthr")
    say("before the file")
    keep_log(folder, World(), "aaaa", (3, 8))
    note("after it")
    lines = path.read_text().splitlines()
    assert lines[:2] == ["one", "two"]
    assert lines[2].endswith("info before the file")
    assert "launch aaaa: rank 0 of 1, process" in lines[3]
    assert lines[4].endswith("info after it")


def test_old_lines_move_to_older_files(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    keep_log(folder, World(rank=1, world_size=2), "aaaa", None)
    for number in range(200):
        note(f"line {number}")
    files = sorted(folder.logs.iterdir())
    assert [path.name for path in files] == [
        "rank-00001.log",
        *(f"rank-00001.log.{n}" for n in (1, 2, 3)),
    ]
    assert all(path.stat().st_size <= 1000 for path in files)
    assert files[0].read_text().splitlines()[-1].endswith("line 199")


def test_a_file_is_json_as_a_whole(folder: OutputFolder) -> None:
    keep_log(folder, World(), "aaaa", None)
    speak_as(0, as_json=True, is_logging=True)
    for launch in ("bbbb", "cccc"):
        keep_log(folder, World(), launch, None)
    lines = folder.log(0, None).read_text().splitlines()
    assert ["bbbb" in lines[0], "cccc" in lines[1]] == [True, True]
    assert all(json.loads(line)["message"] for line in lines)
    assert "aaaa" in (folder.logs / "rank-00000.log.1").read_text()


@pytest.mark.parametrize("obstacle", ["folder", "link", "fifo", "full"])
def test_a_log_that_cannot_be_written_harms_nothing(
    folder: OutputFolder,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def full(_: object) -> TextIO:
        return open("/dev/full", "w")

    path = folder.log(0, None)
    path.parent.mkdir()
    mine = folder.dir / "mine"
    mine.write_text("mine")
    if obstacle == "folder":
        path.mkdir()
    elif obstacle == "fifo":
        os.mkfifo(path)
    elif obstacle == "link":
        path.symlink_to(mine)
    else:
        monkeypatch.setattr(logs._LogFile, "_open", full)
    keep_log(folder, World(), "aaaa", None)
    say("goes on")
    assert capfd.readouterr().err == "runner: goes on\n"
    assert mine.read_text() == "mine"
