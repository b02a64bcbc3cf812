"""A manifest, a prompt file or a model that changed since the images were made."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from safetensors.numpy import load_file, save_file
from support import tiny
from support.bench import PROMPTS, Bench
from support.launch import lines, pixels, stamps, summary

from runner.errors import ExitCode, FolderError, InterruptedRunError, ManifestError
from runner.folder.paths import HEADER
from runner.render.pipeline import Pipeline


# Case 28, invariant 7.
def test_a_changed_prompt_is_named_and_regenerated_alone(bench: Bench) -> None:
    bench.run()
    before = stamps(bench.output)
    bench.values["prompts"][1] = "a blue fox"
    with pytest.raises(FolderError, match=r"prompts\[1\].prompt .* → \"a blue fox\".*--regenerate"):
        bench.run()
    assert stamps(bench.output) == before
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    after = stamps(bench.output)
    assert {name for name in after if after[name] != before[name]} == {"000001.png"}
    assert lines(bench.output / "metadata.jsonl")[1]["prompt"] == "a blue fox"
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == after


def test_a_prompt_put_first_and_other_steps_are_named(bench: Bench) -> None:
    bench.run()
    bench.values["prompts"].insert(0, "snow")
    with pytest.raises(FolderError, match="0, 1, 2, 3, 4: seed goes by the place in the list"):
        bench.run()
    bench.values["prompts"].pop(0)
    bench.values["parameters"]["num_inference_steps"] = 3
    with pytest.raises(FolderError, match="0, 1, 2, 3, 4: num_inference_steps 2 → 3"):
        bench.run()


def test_a_shortened_list_and_a_longer_one(bench: Bench) -> None:
    bench.run()
    before = stamps(bench.output)
    bench.values["prompts"] = PROMPTS[:3]
    with pytest.raises(FolderError, match=r"000003.png, 000004.png: no longer in the list"):
        bench.run()
    assert stamps(bench.output) == before
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    assert set(stamps(bench.output)) == {"000000.png", "000001.png", "000002.png"}
    bench.values["prompts"] = [*PROMPTS, "snow"]
    assert bench.run() is ExitCode.COMPLETE
    assert len(pixels(bench.output)) == 6


def test_a_moved_model_and_a_changed_one(bench: Bench, tmp_path: Path) -> None:
    copy = shutil.copytree(bench.values["model"], tmp_path / "copy")
    bench.run()
    before = stamps(bench.output)
    bench.values["model"] = str(copy)
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before
    tiny.edit_json(copy / "scheduler" / "scheduler_config.json", shift=3.0)
    with pytest.raises(FolderError, match="scheduler/scheduler_config.json of the model changed"):
        bench.run()


# Case 6: old and new weights stood side by side.
def test_weights_that_were_replaced_in_place(bench: Bench, tmp_path: Path) -> None:
    copy = shutil.copytree(bench.values["model"], tmp_path / "copy")
    bench.values["model"] = str(copy)
    bench.run()
    before = stamps(bench.output)
    path = copy / "text_encoder" / "model.safetensors"
    values = load_file(path)
    name = max(values, key=lambda name: values[name].size)
    save_file({**values, name: values[name] * 1.7}, path, metadata={"format": "pt"})
    wanted = r"0, 1, 2, 3, 4: text_encoder/model.safetensors of the model changed since\)"
    with pytest.raises(FolderError, match=wanted):
        bench.run()
    assert re.search(wanted, bench.status()["sentence"])
    assert bench.status()["exit_code"] == 2
    assert any(re.search(wanted, remark) for remark in bench.plan()["remarks"])
    (bench.output / ".runner" / "model.json").write_text("[")
    with pytest.raises(FolderError, match="the manifest changed since"):
        bench.run()
    assert stamps(bench.output) == before
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    assert not set(before.items()) & set(stamps(bench.output).items())
    values[name] *= 2
    save_file(values, path, metadata={"format": "pt"})
    with pytest.raises(FolderError, match=wanted):
        bench.run()


def test_image_folders_and_their_change(bench: Bench) -> None:
    bench.values["output"] = {"images_per_folder": 2}
    assert bench.run() is ExitCode.COMPLETE
    names = [line["file_name"] for line in lines(bench.output / "metadata.jsonl")]
    assert names == [f"{i // 2:06d}/{i:06d}.png" for i in range(5)]
    folder = datasets.load_dataset("imagefolder", data_dir=str(bench.output), split="train")
    assert folder["index"] == list(range(5))
    bench.values["output"] = {}
    with pytest.raises(FolderError, match=r"images_per_folder .*null \(000000/000000.png\)"):
        bench.run()
    assert bench.status()["exit_code"] == 2


def test_image_folders_that_come_when_all_records_are_gone(bench: Bench) -> None:
    """An image must not get a second name."""
    bench.values["prompts"] = PROMPTS[:2]
    bench.run()
    shutil.rmtree(bench.output / ".runner")
    for path in (*bench.output.glob("*.json*"), bench.output / "manifest.yaml"):
        path.unlink()
    bench.values["output"] = {"images_per_folder": 1}
    with pytest.raises(FolderError, match=r"images_per_folder .*1 \(000000.png\)"):
        bench.run()


def test_prompts_that_change_while_they_are_made(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = tmp_path / "list.txt", Pipeline.images
    file.write_text("a cat\na dog\na fox\n")
    bench.values["prompts"] = {"file": "list.txt"}

    def images(self: Pipeline, tasks: Any) -> Any:
        file.write_text("a cat\na hen\na fox\n")
        return real(self, tasks)

    monkeypatch.setattr(Pipeline, "images", images)
    with pytest.raises(InterruptedRunError, match="list.txt:2: not what it was"):
        bench.run()
    report = summary(bench.output)
    assert (report["outcome"], report["done"], report["missing"]) == ("interrupted", 1, 2)
    assert any("list.txt:2: not what" in error for error in report["errors"])
    file.write_text("a cat\na dog\na fox\n")
    monkeypatch.setattr(Pipeline, "images", real)
    assert bench.run() is ExitCode.COMPLETE


def test_a_prompt_file_that_changes_during_the_work(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    bench.values["prompts"] = {"file": "prompts.txt"}
    at_image(2, lambda: path.write_text("\n".join([*PROMPTS[:4], "a fish"])) and None)
    with pytest.raises(InterruptedRunError, match="prompts.txt:5: not what it was"):
        bench.run()
    path.write_text("\n".join([*PROMPTS, "added"]))
    assert bench.run() is ExitCode.COMPLETE
    assert (summary(bench.output)["made"], summary(bench.output)["done"]) == (2, 6)


def test_a_broken_recorded_manifest_is_told(bench: Bench) -> None:
    bench.run()
    for text in ("model: [", "", "modle: x\n"):
        (bench.output / "manifest.yaml").write_text(HEADER + text)
        with pytest.raises(ManifestError, match=r"manifest.yaml: not as the runner wrote it"):
            bench.run()
    assert set(os.listdir(bench.output / ".runner" / "locks")) == {"guard", "moves", "report"}
