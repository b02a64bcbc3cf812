"""`runner init`: a manifest from a list, which is good as it is."""

import shutil
from pathlib import Path

import pytest
from support import ROOT
from support.sources import write

from runner.cli import main
from runner.manifest.load import load

LISTS = sorted((ROOT / "tests/data/lists").iterdir())


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_well_known_lists(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(path, tmp_path)
    assert main(["init", path.name, "--model", "Qwen/Qwen-Image"]) == 0
    assert f"next: runner plan {path.stem}.yaml" in capsys.readouterr().out
    loaded = load(Path(f"{path.stem}.yaml"))
    assert loaded.manifest.model.id == "Qwen/Qwen-Image"
    assert len(loaded.prompts) >= 2
    assert min(len(item.prompt) for item in loaded.prompts) > 10  # no number, no category


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.txt", "id,caption\n1,a cat\n", "format: csv"),
        ("a.jsonl", '[{"caption": "a cat"}]', "format: json"),
        ("a.txt", "a cat\na dog\n", "file: a.txt\n"),
        ("a: b.csv", "Prompt,steps\na cat,8\n", "num_inference_steps: steps"),
        ("a.csv", "id,prompt\nx,a cat\n", '"{id}_{variation:02}"'),
        ("a.txt", "a cat --n low --w 64\na dog --n low\n", "format: sd-scripts"),
        ("a.csv", "promt,seed\na cat,4\n", "columns: {prompt: promt}"),
        (
            "a.jsonl",
            '{"caption": "a cat", "w": 64, "h": 64, "neg": "x", "year": 1}',
            "# columns: {prompt: caption, width: w, height: h, negative_prompt: neg} ",
        ),
    ],
)
def test_what_it_finds(tmp_path: Path, name: str, data: str, wanted: str) -> None:
    path = write(tmp_path / name, data)
    assert main(["init", path.name]) == 0
    text = path.with_suffix(".yaml").read_text()
    assert wanted in text
    assert len(load(path.with_suffix(".yaml")).prompts) >= 1


def test_a_folder_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "captions").mkdir()
    write(tmp_path / "captions/a.txt", "a cat")
    assert main(["init", "captions"]) == 0
    assert load(Path("captions.yaml")).prompts[0].id == "a"
    before = Path("captions.yaml").read_text()
    for words, wanted in (
        (["captions"], "captions.yaml: is there"),
        ([str(write(tmp_path / "d.txt", "a --n x\nb --steps 4\n"))], "d.txt:2: --steps: cannot"),
        (["absent.csv"], "absent.csv: no such file"),
        ([str(write(tmp_path / "b.csv", "prompt\na\xff\x00"))], "b.csv:2: prompt: the control"),
        ([str(write(tmp_path / "c.doc", "a"))], "prompt files end in .txt"),
    ):
        assert main(["init", *words]) == 2
        assert wanted in capsys.readouterr().err
    assert Path("captions.yaml").read_text() == before
    assert not Path("b.yaml").exists()
