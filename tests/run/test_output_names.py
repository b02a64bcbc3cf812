"""Images with names of their author's own, in folders of their author's own."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from support.bench import Bench
from support.launch import lines, pixels, stamps

from runner.cli import main
from runner.errors import ExitCode, FolderError, ManifestError
from runner.folder.paths import OutputFolder
from runner.manifest.schema import OutputSpec

WORDS = ("cat", "fox", "dog")


@pytest.fixture
def named(bench: Bench) -> Bench:
    bench.values["prompts"] = [
        {"prompt": f"a {word}", "id": word} for word in ("cat", "fox", "dog")
    ]
    bench.values["variations"] = 2
    bench.values["output"] = {"name": "{id}/samples/{variation:04}"}
    return bench


NAMES = [f"{word}/samples/000{i}.png" for word in WORDS for i in (0, 1)]


def test_names_change_no_pixel_and_all_is_found_again(named: Bench, tmp_path: Path) -> None:
    by_name = named.output
    assert [task["file_name"] for task in named.plan()["tasks"]] == NAMES
    assert named.run(limit=3) is ExitCode.COMPLETE
    left_over = by_name / "fox/samples/.0001.png.dead0000.0a0b0c0d.part"
    left_over.write_bytes(b"x")
    before = stamps(by_name / "cat/samples")
    assert named.run() is ExitCode.COMPLETE
    assert not left_over.exists()
    assert stamps(by_name / "cat/samples") == before
    assert [line["file_name"] for line in lines(by_name / "metadata.jsonl")] == NAMES
    assert named.status()["sentence"].startswith("complete: 6 of 6")
    (by_name / "dog/samples/0001.png").unlink()
    (by_name / "fox/samples/0000.png").write_bytes(b"")
    assert named.run() is ExitCode.COMPLETE
    del named.values["output"]
    named.output = tmp_path / "by_index"
    assert named.run() is ExitCode.COMPLETE
    by_word = [image for word in WORDS for image in pixels(by_name / word / "samples").values()]
    assert by_word == [*pixels(named.output).values()]
    rows = load_dataset("imagefolder", data_dir=str(by_name), split="train", cache_dir=tmp_path)
    assert sorted(zip(rows["id"], rows["variation"], strict=True))[0] == ("cat", 0)


def test_another_template_is_refused(named: Bench) -> None:
    named.run(limit=1)
    named.values["output"] = {"name": "{id}_{variation}"}
    with pytest.raises(FolderError, match=r"with another output.name than .*: {id}/samples/"):
        named.run()
    assert "another output.name" in named.plan()["remarks"][-1]


def test_what_lies_beside_the_images(named: Bench) -> None:
    named.run(limit=2)
    photo = named.output / "photo.png"
    shutil.copy(named.output / "cat/samples/0000.png", named.output / "cat/samples/copy.png")
    photo.write_bytes(b"mine")
    with pytest.raises(FolderError, match="copy.png: no longer in the list"):
        named.run()
    assert named.run(regenerate=True) is ExitCode.COMPLETE
    assert photo.exists()
    assert not (named.output / "cat/samples/copy.png").exists()


def test_a_list_that_moves_changes_no_name(named: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no finished image is read whole."""
    named.values["seed"] = {"per": "prompt"}
    assert named.run() is ExitCode.COMPLETE
    before = stamps(named.output / "cat/samples")
    named.values["prompts"] = [{"prompt": "the sun", "id": "sun"}, *named.values["prompts"][::-1]]
    for name in ("adopt", "_fingerprint_in"):
        monkeypatch.setattr(f"runner.folder.survey.{name}", lambda path, *_: pytest.fail(str(path)))
    assert named.run() is ExitCode.COMPLETE
    path = named.write(**named.values)
    assert main(["verify", str(path), "--output", str(named.output), "--sample", "0"]) == 0
    assert stamps(named.output / "cat/samples") == before
    made = {line["file_name"]: line["index"] for line in lines(named.output / "metadata.jsonl")}
    assert (made["sun/samples/0000.png"], made["cat/samples/0000.png"]) == (0, 6)


def test_a_tag_that_changes_takes_its_images_along(named: Bench) -> None:
    named.values["output"] = {"name": "{tag}/{variation}"}
    for number, item in enumerate(named.values["prompts"]):
        item["meta"] = {"tag": f"t{number}"}
    assert named.run() is ExitCode.COMPLETE
    before = stamps(named.output / "t1")
    named.values["prompts"][1]["meta"] = {"tag": "new"}
    assert named.plan()["finished"] == 6
    assert named.run() is ExitCode.COMPLETE
    assert stamps(named.output / "new") == before
    assert stamps(named.output / "t1") == {}
    assert len(lines(named.output / "metadata.jsonl")) == 6


def test_a_link_is_not_followed(named: Bench, tmp_path: Path, failing: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    named.output.mkdir()
    (named.output / "cat").symlink_to(elsewhere)
    assert named.run(limit=2) is ExitCode.FAILED
    assert [*elsewhere.iterdir()] == []
    assert "a link" in lines(named.output / "failures.jsonl")[0]["error"]


def test_names_are_checked_before_the_start(named: Bench) -> None:
    named.values["output"] = {"name": "{id}"}
    for command in (named.plan, named.run):
        with pytest.raises(ManifestError, match=r"both be cat.png; add {variation}"):
            command()
    assert not (named.output / "manifest.yaml").exists()


def test_the_default_folder_needs_no_folders_made(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "absent", OutputSpec())
    folder.make_folders(tmp_path / "absent/000000.png")
    assert not folder.dir.exists()
