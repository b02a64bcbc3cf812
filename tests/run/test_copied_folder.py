"""An output folder that was copied elsewhere, without anything else."""

import csv
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from support.launch import lines, pixels, stamps

from runner.cli import main
from runner.render import load as load_module
from runner.render.fake import FakePipeline

ROWS: list[dict[str, Any]] = [
    {"caption": 'a "cat",\nor two', "key": "x-1", "tag": "counting", "seed": 5},
    {"caption": "a fox --no flag", "key": "7", "tag": "", "seed": ""},
    {"caption": "  ünïcode 🦊 ", "key": "x-3", "tag": "color", "seed": ""},
]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "load", lambda *_, stop, **__: FakePipeline(stop))


def make(folder: Path, flux: Path, **values: Any) -> Path:
    base = {"model": str(flux), "seed": 3, "parameters": {"height": 32, "width": 32}}
    path = folder / "job.yaml"
    path.write_text(json.dumps({**base, **values}))
    assert main([str(path), "--output", str(folder / "out")]) == 0
    return folder / "out"


def moved(home: Path) -> Path:
    """The output folder alone, elsewhere."""
    copy = shutil.copytree(home / "out", home.with_name("elsewhere") / "copy")
    shutil.rmtree(home)
    return copy


def test_a_copied_folder_goes_on(tmp_path: Path, flux: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with (home / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
    columns = {"prompt": "caption", "id": "key"}
    source = {"file": "list.csv", "columns": columns}
    inline = {"prompt": "the last", "variations": 2, "meta": {"from": "me"}}
    output = make(home, flux, prompts=[source, inline])
    rows = lines(output / "metadata.jsonl")
    assert [row.get("id") for row in rows] == ["x-1", "7", "x-3", None, None]
    copy = moved(home)
    before, made = stamps(copy), pixels(copy)
    manifest = copy / "manifest.yaml"
    assert str(home) not in manifest.read_text()
    assert main([str(manifest)]) == 0
    assert stamps(copy) == before
    (copy / "000002.png").unlink()
    assert main([str(manifest)]) == 0
    assert pixels(copy) == made
    assert [{**row, "seconds": 0} for row in lines(copy / "metadata.jsonl")] == [
        {**row, "seconds": 0} for row in rows
    ]


def test_other_prompts_than_the_folder_was_made_with(
    tmp_path: Path, flux: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "list.txt").write_text("a cat\na dog\n")
    make(home, flux, prompts={"file": "list.txt"})
    copy = moved(home)
    with (copy / "manifest-prompts.jsonl").open("a") as file:
        file.write('{"prompt": "a hen"}\n')
    capsys.readouterr()
    assert main([str(copy / "manifest.yaml")]) == 2
    shown = capsys.readouterr().err
    assert "prompts.file: manifest-prompts.jsonl: its SHA-256 is " in shown
    assert "take the file that belongs to this manifest" in shown


def test_a_long_list_is_compressed_and_written_once(tmp_path: Path, flux: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "list.txt").write_text("".join(f"prompt {number}\n" for number in range(1200)))
    path, output = home / "job.yaml", home / "out"
    values = {"model": str(flux), "seed": {"per": "prompt"}, "prompts": {"file": "list.txt"}}
    path.write_text(json.dumps(values))
    assert main([str(path), "--output", str(output), "--limit", "2"]) == 0
    packed = output / "manifest-prompts.jsonl.gz"
    assert len(gzip.decompress(packed.read_bytes()).splitlines()) == 1200
    written = packed.stat().st_mtime_ns
    assert main([str(path), "--output", str(output), "--limit", "3"]) == 0
    assert packed.stat().st_mtime_ns == written
    loaded = datasets.load_dataset("imagefolder", data_dir=str(output), split="train")
    assert loaded["prompt"] == ["prompt 0", "prompt 1", "prompt 2"]
    (home / "list.txt").write_text("prompt 0\nprompt 1\nprompt 2\n")
    assert main([str(path), "--output", str(output)]) == 0
    assert not packed.exists()
    named = yaml.safe_load((output / "manifest.yaml").read_text())["prompts"]
    assert named["file"] == "manifest-prompts.jsonl"
    assert main([str(moved(home) / "manifest.yaml")]) == 0


def test_a_file_of_that_name_that_is_somebody_elses_stays(
    tmp_path: Path, flux: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.txt").write_text("a cat\n")
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "manifest-prompts.jsonl"
    mine.write_text("mine\n")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"model": str(flux), "prompts": {"file": "list.txt"}}))
    assert main([str(path), "--output", str(tmp_path / "out")]) == 2
    assert "manifest-prompts.jsonl: was not written by the runner" in capsys.readouterr().err
    assert mine.read_text() == "mine\n"


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b'"a cat"\n')[:-9], b""],
    ids=["no gzip", "cut", "empty"],  # gzip writes the time into its header
)
def test_a_broken_archive_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    (tmp_path / "list.jsonl.gz").write_bytes(data)
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"model": "demo", "prompts": {"file": "list.jsonl.gz"}}))
    assert main(["validate", str(path)]) == 2
    shown = capsys.readouterr().err
    assert "list.jsonl.gz: " in shown
    assert "Traceback" not in shown
