"""A folder that an older runner began is continued: its images stay, only the rest is made.

`tests/data/begun_before/out` was made from the job beside it with `--limit 3`, by the runner as it
was before its files moved into folders (commit ae84ba8). Fingerprints and the forms of files are a
promise to users.
"""

import json
import shutil
from pathlib import Path

import pytest
from support import ROOT
from support.launch import lines, stamps, summary

from runner.cli import main
from runner.folder.journal import merge
from runner.folder.paths import OutputFolder
from runner.manifest.schema import OutputSpec

BEFORE = ROOT / "tests/data/begun_before"


def test_its_journal_is_read() -> None:
    folder = OutputFolder(BEFORE / "out", OutputSpec())
    assert sorted(merge(folder.journals, 5).done) == [0, 1, 2]


# Without the lists of images, as in a killed run's folder.
@pytest.mark.parametrize("lost", [(), ("metadata.jsonl", "summary.json")])
def test_a_folder_begun_before_is_finished(tmp_path: Path, lost: tuple[str, ...]) -> None:
    out = shutil.copytree(BEFORE / "out", tmp_path / "out")
    for name in lost:
        (out / name).unlink()
    there = stamps(out)
    assert len(there) == 3
    assert main(["status", str(BEFORE / "job.yaml"), "--output", str(out), "--exit-code"]) == 75
    assert main(["run", str(BEFORE / "job.yaml"), "--output", str(out)]) == 0
    after = stamps(out)
    assert {name: after[name] for name in there} == there
    assert (len(after), summary(out)["made"], summary(out)["outcome"]) == (5, 2, "complete")
    old = [json.loads(line) for line in (BEFORE / "out/metadata.jsonl").read_text().splitlines()]
    new = [{"variation": 0, **line} for line in old]  # which that version did not write
    assert lines(out / "metadata.jsonl")[:3] == new
