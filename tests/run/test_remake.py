"""An image alone makes itself again, and other programs read how it was made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from sd_parsers import ParserManager
from support import ROOT
from support.bench import Bench
from support.launch import lines, pixels

from runner.cli import main
from runner.folder.png import encode, read_text
from runner.render.comparison import compare, pixels_of
from runner.render.exactness import exactness_of
from runner.strategies.base import Exactness
from runner.strategies.data_parallel import DataParallel

OLD = ROOT / "tests/data/begun_before/out/000001.png"


@pytest.fixture
def image(bench: Bench) -> Path:
    """The third of four images of a prompt, made with a model in a local folder."""
    bench.values["prompts"] = [{"prompt": "a cat", "variations": 4, "meta": {"series": 3}}]
    bench.run()
    return bench.output / "000002.png"


def edited(path: Path, **texts: Any) -> Path:
    """A copy of an image whose texts somebody changed; None removes one."""
    held = {**(read_text(path) or {}), **texts}
    del held["pixels"]
    left = {key: value for key, value in held.items() if value is not None}
    copy = path.with_name("edited.png")
    copy.write_bytes(encode(pixels_of(path), left, 1))
    return copy


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["remake", *map(str, words)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


# Case 3, and "enough to make it again".
def test_the_same_image_bit_for_bit(
    image: Path, flux: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    assert main(["remake", str(image), "--set", f"model={flux}", "--output", str(again)]) == 0
    assert capsys.readouterr().out == f"{again}/000000.png: exact, beside {image}\n"
    assert pixels(again)["000000.png"] == pixels(image.parent)["000002.png"]
    assert lines(again / "metadata.jsonl")[0]["meta"] == {"series": 3}


def test_a_change_makes_another_image(
    image: Path, flux: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", f"model={flux}", "--set", "seed=99", "--output", str(tmp_path / "other")]
    assert main(["remake", str(image), *words]) == 0
    assert "made with other settings" in capsys.readouterr().out
    assert pixels(tmp_path / "other")["000000.png"] != pixels(image.parent)["000002.png"]


def test_the_manifest_that_is_shown_makes_the_same(
    image: Path, flux: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remake", str(image), "--set", f"model={flux}", "--show"]) == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    assert main([str(tmp_path / "again.yaml"), "--output", str(tmp_path / "again")]) == 0
    assert pixels(tmp_path / "again")["000000.png"] == pixels(image.parent)["000002.png"]


def test_an_image_of_the_first_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remake", str(OLD), "--show"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["model"] == {"id": "demo"}
    assert values["seed"] == {"start": 8}
    assert values["parameters"]["num_inference_steps"] == 2


def test_a_local_model_is_asked_for_and_checked(
    image: Path, flux: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"local folder, {flux.name}; name that folder: --set model=DIR" in refusal(capsys, image)
    moved = shutil.copytree(flux, tmp_path / "moved")
    assert main(["remake", str(image), "--set", f"model={moved}", "--show"]) == 0
    capsys.readouterr()
    weights = next((moved / "transformer").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert "other weights" in refusal(capsys, image, "--set", f"model={moved}")


def test_no_permission_comes_from_an_image(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"id": "some/model", "trust_remote_code": True, "allow_pickle": True, "revision": "1"}
    hostile = edited(image, model=spec, trust_remote_code="true")
    assert main(["remake", str(hostile), "--show"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"] == {
        "id": "some/model",
        "revision": "1",
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"call": {"callback": "os.system"}}, "callback is set by the runner"),
        ({"call": "!!python/object/apply:os.system [id]"}, "its text call is damaged"),
        ({"call": "[" * 100_000}, "its text call is damaged"),
        ({"call": {"image": "/etc/passwd"}}, "does not say what was in its input image"),
        ({"call": {"image": ["../a.png"]}}, "does not say what was in its input image"),
        ({"seed": "-1"}, "seed"),
        ({"seed": "9" * 30}, "seed"),
        ({"seed": "9" * 5000}, "seed"),
        ({"model": {"id": "../model"}}, "local folder, model; name that folder"),
        ({"model": {"id": "some/model"}}, "a folder has the same name"),
        ({"dtype": "float8"}, "not a dtype"),
        ({"prompt": " "}, "blank"),
        ({"model": {"id": "../../etc"}}, "local folder, etc; name that folder"),
        ({"model": {"id": ["demo"]}}, "local folder"),
        ({"fingerprint": None}, "does not say how it was made"),
    ],
)
def test_a_hostile_image_is_refused_in_a_line(
    texts: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(OLD, tmp_path / "old.png")
    (tmp_path / "some/model").mkdir(parents=True)
    assert words in refusal(capsys, edited(tmp_path / "old.png", **texts), "--show")


def test_a_prompt_of_yaml_stays_a_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copy(OLD, tmp_path / "old.png")
    prompt = "!!python/object/apply:os.system ['id']\nmodel: {trust_remote_code: true} # {x}"
    assert main(["remake", str(edited(tmp_path / "old.png", prompt=prompt)), "--show"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["prompts"] == [prompt]
    assert values["model"] == {"id": "demo"}


def test_an_image_in_place_of_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(OLD)]) == 2
    assert capsys.readouterr().err == (
        f"runner: {OLD}: is an image; make it again: runner remake {OLD}\n"
    )


def test_no_such_image(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no such file" in refusal(capsys, "none.png")
    (tmp_path / "a.png").write_text("a picture")
    assert "not a PNG" in refusal(capsys, tmp_path / "a.png")


def test_other_programs_read_how_it_was_made(bench: Bench) -> None:
    bench.values["prompts"] = ["a cat, and: a dog"]
    bench.values["parameters"] |= {"negative_prompt": "rain", "true_cfg_scale": 2.5}
    bench.run()
    found = ParserManager().parse(bench.output / "000000.png")
    assert found is not None
    sampler = found.samplers[0]
    assert [prompt.value for prompt in sampler.prompts] == ["a cat, and: a dog"]
    assert [prompt.value for prompt in sampler.negative_prompts] == ["rain"]
    assert sampler.name == "FlowMatchEulerDiscreteScheduler"
    steps = bench.values["parameters"]["num_inference_steps"]
    assert sampler.parameters == {"seed": "3", "steps": str(steps), "cfg_scale": "2.5"}


def test_an_image_does_not_tell_where_it_was_made(image: Path, flux: Path) -> None:
    data = image.read_bytes()
    for place in (flux.parent, image.parent, Path.home(), Path.cwd()):
        assert str(place).encode() not in data


# Invariant 2, for whole files.
def test_a_file_has_the_same_bytes_from_whichever_launch(bench: Bench) -> None:
    bench.run()
    whole = {path.name: path.read_bytes() for path in bench.output.glob("*.png")}
    bench.output = bench.output.with_name("shards")
    for number in (2, 1):
        bench.run(part=(number, 2))
    assert {path.name: path.read_bytes() for path in bench.output.glob("*.png")} == whole


def test_the_tier_of_an_image(bench: Bench) -> None:
    bench.run()
    for line in lines(bench.output / "metadata.jsonl"):
        assert line["reproducibility"] == "exact"
    bench.values["batch_size"] = 2
    bench.output = bench.output.with_name("batches")
    bench.run()
    line = lines(bench.output / "metadata.jsonl")[0]
    assert line["reproducibility"] == "batch-sensitive"
    assert line["reproducibility_reason"].startswith("made in a batch of 2")
    with Image.open(bench.output / "000000.png") as picture:
        assert json.loads(picture.info["made"])["reproducibility"] == "batch-sensitive"


@pytest.mark.parametrize(
    ("limits", "batch", "degraded", "compiled", "tier", "reason"),
    [
        ([], 1, [], False, "exact", "made alone"),
        ([], 1, ["model offload"], False, "exact", "made alone"),
        ([], 4, [], False, "batch-sensitive", "a batch of 4"),
        ([], 1, ["batch split"], False, "batch-sensitive", "smaller batch"),
        ([], 4, [], True, "close", "compiled blocks"),
        ([], 4, ["vae tiling"], True, "lossy", "decoded in tiles"),
        ([Exactness("lossy", "quantized weights: vae")], 1, [], False, "lossy", "quantized"),
    ],
)
def test_the_worst_cause_decides(
    limits: list[Exactness], batch: int, degraded: list[str], compiled: bool, tier: str, reason: str
) -> None:
    found = exactness_of([DataParallel().exactness, *limits], batch, degraded, is_compiled=compiled)
    assert found["reproducibility"] == tier
    assert reason in found["reproducibility_reason"]


def test_how_near_two_pictures_are() -> None:
    picture = pixels_of(OLD)
    near, far = picture.copy(), picture.copy()
    near[0, 0, 0] ^= 1
    far[0, 0, 0] ^= 64
    assert str(compare(picture, picture, "float32")) == "exact"
    assert str(compare(near, picture, "float32")).startswith("close: at most 1 of 255 apart")
    assert str(compare(far, picture, "float32")).startswith("different: at most 64 of 255 apart")
    assert compare(far, picture, "bfloat16").verdict == "close"  # 64 in one value of 12,288
    assert str(compare(picture[:9], picture, "float32")) == (
        "different: it is 64×9 with 3 channels, not 64×64 with 3 channels"
    )
