"""`runner verify` finds whatever is not as the runner left it, and makes a sample again."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support import ROOT
from support.bench import Bench
from support.launch import lines

from runner.cli import main
from runner.commands.verify import Verified, verify
from runner.errors import FolderError
from runner.folder.audit import DELETE, MOVE, NOT_A_FILE
from runner.folder.png import encode, read_text
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import load
from runner.render.comparison import pixels_of

BEFORE = ROOT / "tests/data/begun_before"


@pytest.fixture(scope="module")
def finished(flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder, which each test copies: four images, the model beside it."""
    home = tmp_path_factory.mktemp("finished")
    shutil.copytree(flux, home / "model")
    parameters = {"height": 32, "width": 32, "num_inference_steps": 2}
    values = {"model": "model", "seed": 3, "parameters": parameters, "prompts": ["a cat", "a dog"]}
    (home / "job.yaml").write_text(json.dumps({**values, "variations": 2}))
    assert main([str(home / "job.yaml"), "--output", str(home / "out")]) == 0
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "home"))


def verified(home: Path, sample: int = 0, *sets: str) -> Verified:
    return verify(load(home / "job.yaml", sets), home / "out", sample, World(), Stop(20))


def faults(home: Path, *sets: str) -> list[str]:
    return [str(fault) for fault in verified(home, 0, *sets).audit.faults]


def saved(path: Path, pixels: Any, texts: dict[str, Any]) -> None:
    """An image with new pixels or texts, its checksum of the pixels right for them."""
    path.write_bytes(encode(pixels, {k: v for k, v in texts.items() if k != "pixels"}, 1))


def test_a_finished_folder_is_right_and_exact(home: Path) -> None:
    found = verified(home, 20)
    assert (found.exit_code, found.audit.faults) == (0, [])
    assert [one.verdict for one in found.sample.values()] == ["exact"] * 4
    assert [*found.lines()] == [
        f"4 of 4 images in {home / 'out'} as they should be",
        "made again: 4 images (0, 1, 2, 3): 4 exact",
    ]


def flip_a_pixel(out: Path) -> None:
    path = out / "000001.png"
    texts, pixels = read_text(path) or {}, pixels_of(path).copy()
    pixels[0, 0, 0] ^= 1
    checksum = texts["pixels"]
    saved(path, pixels, texts)
    new = (read_text(path) or {})["pixels"]
    path.write_bytes(rewritten(path.read_bytes(), new, checksum))


def rewritten(data: bytes, old: str, new: str) -> bytes:
    """With a text of the same length, and its chunk's checksum right."""
    at = data.index(b"iTXtpixels")
    length = int.from_bytes(data[at - 4 : at], "big")
    chunk = data[at : at + 4 + length].replace(old.encode(), new.encode())
    return data[:at] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + data[at + 8 + length :]


def flip_a_pixel_and_its_checksum(out: Path) -> None:
    path = out / "000001.png"
    pixels = pixels_of(path).copy()
    pixels[0, 0, 0] ^= 1
    saved(path, pixels, read_text(path) or {})


def flip_a_bit_of_the_file(out: Path) -> None:
    data = bytearray((out / "000001.png").read_bytes())
    data[-30] ^= 1
    (out / "000001.png").write_bytes(data)


def swap(out: Path) -> None:
    one, other = out / "000001.png", out / "000002.png"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def edit_the_prompt_in_the_image(out: Path) -> None:
    path = out / "000001.png"
    saved(path, pixels_of(path), {**(read_text(path) or {}), "prompt": "a wolf"})


def save_with_another_program(out: Path) -> None:
    path = out / "000001.png"
    saved(path, pixels_of(path), {})


def cut(out: Path) -> None:
    path = out / "000001.png"
    path.write_bytes(path.read_bytes()[:-20])


def remove(out: Path) -> None:
    (out / "000001.png").unlink()


def change_line(out: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = out / "metadata.jsonl"
    rows = lines(path)
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_metadata(out: Path) -> None:
    change_line(out, lambda rows: rows[1].update(seed=99, prompt="a wolf"))


def remove_a_line(out: Path) -> None:
    change_line(out, lambda rows: rows.pop(1) and None)


def add_a_line(out: Path) -> None:
    change_line(out, lambda rows: rows.append({**rows[0], "index": 7, "file_name": "000007.png"}))


def break_a_line(out: Path) -> None:
    path = out / "metadata.jsonl"
    path.write_text(path.read_text().replace('{"file_name":"000001', '{file_name":"000001'))


def drop_values(out: Path) -> None:
    change_line(out, lambda rows: [rows[1].pop(key) for key in ("seed", "degraded")] and None)


def turn_one_into_true(out: Path) -> None:
    change_line(out, lambda rows: rows[1].update(batch_size=True))


def name_a_list(out: Path) -> None:
    change_line(out, lambda rows: rows.append({"index": 7, "file_name": ["000001.png"]}))


def say_it_twice(out: Path) -> None:
    path = out / "metadata.jsonl"
    path.write_text(path.read_text().replace('"prompt":', '"prompt":"a wolf","prompt":', 1))


def end_in_rubbish(out: Path) -> None:
    path = out / "metadata.jsonl"
    path.write_bytes(path.read_bytes() + b"\xff\xfe\0\n")


def link(out: Path) -> None:
    (out / "000001.png").rename(out.parent / "elsewhere.png")
    (out / "000001.png").symlink_to(out.parent / "elsewhere.png")


def make_a_folder(out: Path) -> None:
    (out / "000001.png").unlink()
    (out / "000001.png").mkdir()


def copy_under_another_name(out: Path) -> None:
    shutil.copy(out / "000001.png", out / "cat.png")
    (out / "photo.png").write_bytes(b"of somebody else")


LACKS = "metadata.jsonl: lacks image 1"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip_a_pixel, ["000001.png: its pixels were changed since it was made"]),
        (
            flip_a_pixel_and_its_checksum,
            ["000001.png: its bytes are not those that the runner wrote"],
        ),
        (flip_a_bit_of_the_file, ["000001.png: is damaged: not a whole PNG"]),
        (
            swap,
            [
                "000001.png: holds the picture of image 2",
                "000002.png: holds the picture of image 1",
            ],
        ),
        (
            edit_the_prompt_in_the_image,
            ["000001.png: its texts were changed since it was made: prompt"],
        ),
        (
            save_with_another_program,
            ["000001.png: was not written by the runner, or another program saved it anew"],
        ),
        (cut, ["000001.png: is damaged: not a whole PNG"]),
        (remove, ["000001.png: is gone"]),
        (edit_metadata, ["metadata.jsonl: line 2, image 1: changed: prompt, seed"]),
        (remove_a_line, [LACKS]),
        (add_a_line, ["metadata.jsonl: line 5 is about image 7, which is not there"]),
        (break_a_line, ["metadata.jsonl: line 2 is damaged", LACKS]),
        (drop_values, ["metadata.jsonl: line 2, image 1: changed: seed, degraded"]),
        (turn_one_into_true, ["metadata.jsonl: line 2, image 1: changed: batch_size"]),
        (name_a_list, ["metadata.jsonl: line 5 is damaged"]),
        (end_in_rubbish, ["metadata.jsonl: line 5 is damaged"]),
        (say_it_twice, ["metadata.jsonl: line 1 is damaged", LACKS.replace("1", "0")]),
        (link, [f"000001.png: {NOT_A_FILE}"]),
        (make_a_folder, [f"000001.png: {NOT_A_FILE}"]),
        (copy_under_another_name, ["cat.png: was made by the runner, but is no image of the list"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_not_as_the_runner_left_it(
    home: Path, harm: Callable[[Path], None], words: list[str]
) -> None:
    assert faults(home) == []
    harm(home / "out")
    assert faults(home) == words
    assert verified(home).exit_code == 3


@pytest.mark.parametrize(
    "harms",
    [
        (edit_metadata, flip_a_bit_of_the_file, copy_under_another_name),
        (swap, break_a_line),
        (remove, remove_a_line),
        (link,),
    ],
)
def test_what_is_said_to_mend_a_fault_does(
    home: Path, harms: tuple[Callable[[Path], None], ...]
) -> None:
    for harm in harms:
        harm(home / "out")
    found = verified(home)
    mended = [line for line in found.lines() if line.startswith("to mend: ")]
    for fault in found.audit.faults:
        assert any(fault.file in line for line in mended)
        if fault.remedy in (DELETE, MOVE):
            (home / "out" / fault.file).unlink()
    assert main([str(home / "job.yaml"), "--output", str(home / "out")]) == 0
    assert faults(home) == []


def test_a_stale_fingerprint_is_mended_by_regenerate(home: Path) -> None:
    text = (home / "job.yaml").read_text()
    (home / "job.yaml").write_text(
        text.replace('"a dog"', '"a wolf"').replace('variations": 2', 'variations": 1')
    )
    assert [*verified(home).lines()][-1] == (
        "to mend: run the job with --regenerate: it makes anew or removes 000001.png, 000002.png, "
        "000003.png"
    )
    assert main([str(home / "job.yaml"), "--output", str(home / "out"), "--regenerate"]) == 0
    assert faults(home) == []


def test_a_stale_fingerprint(home: Path) -> None:
    text = (home / "job.yaml").read_text()
    (home / "job.yaml").write_text(text.replace("a dog", "a wolf"))
    cause = "was made otherwise: the manifest changed since"
    assert faults(home) == [f"000002.png: {cause}", f"000003.png: {cause}"]


def test_replaced_weights_are_named(home: Path) -> None:
    weights = next((home / "model/transformer").glob("*.safetensors"))
    tensors = {name: tensor * 1.01 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    cause = f"was made otherwise: transformer/{weights.name} of the model changed since"
    assert faults(home) == [f"00000{index}.png: {cause}" for index in range(4)]


def test_a_picture_of_something_else_is_found_by_making_it_again(home: Path) -> None:
    """Even where pixels, texts and journal were made to fit."""
    path = home / "out/000001.png"
    pixels = np.asarray(pixels_of(path)) ^ 64
    size, crc = path.stat().st_size, zlib.crc32(path.read_bytes())
    saved(path, pixels, read_text(path) or {})
    for journal in (home / "out/.runner/journal").glob("*.jsonl"):
        new = f'"size":{path.stat().st_size},"crc":{zlib.crc32(path.read_bytes())}'
        journal.write_text(journal.read_text().replace(f'"size":{size},"crc":{crc}', new))
    found = verified(home, 20)
    assert found.audit.faults == []
    assert {index: one.verdict for index, one in found.sample.items()} == {
        0: "exact",
        1: "different",
        2: "exact",
        3: "exact",
    }
    assert found.exit_code == 3
    assert any("image 1: different: at most" in line for line in found.lines())


def test_without_journals_the_images_speak_for_themselves(home: Path) -> None:
    shutil.rmtree(home / "out/.runner")
    assert faults(home) == []
    flip_a_pixel_and_its_checksum(home / "out")  # nothing else knows the pixels
    found = verified(home, 20)
    assert [*found.sample] == [0, 1, 2, 3]
    assert found.sample[1].most == 1
    edit_metadata(home / "out")
    assert faults(home) == ["metadata.jsonl: line 2, image 1: changed: prompt, seed"]


def test_images_of_a_batch_are_made_again_in_their_batch(bench: Bench) -> None:
    bench.values["batch_size"] = 2
    bench.run()
    found = verify(bench.job().loaded, bench.output, 20, World(), Stop(20))
    assert {one.verdict for one in found.sample.values()} == {"exact"}
    assert [*found.tiers.values()] == ["batch-sensitive"] * 4 + ["exact"]  # the last is alone


def test_a_job_that_is_not_complete_says_so(bench: Bench) -> None:
    bench.run(limit=1)
    found = verify(bench.job().loaded, bench.output, 0, World(), Stop(20))
    assert (found.exit_code, found.audit.missing) == (75, len(bench.values["prompts"]) - 1)


def test_a_folder_of_the_first_version(tmp_path: Path) -> None:
    out = shutil.copytree(BEFORE / "out", tmp_path / "out")
    found = verify(load(BEFORE / "job.yaml"), out, 0, World(), Stop(20))
    assert (found.audit.faults, len(found.audit.good)) == ([], 3)


def test_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no run has begun this folder"):
        verify(load(BEFORE / "job.yaml"), tmp_path, 0, World(), Stop(20))


def test_the_command_prints_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_a_bit_of_the_file(home / "out")
    words = ["verify", str(home / "job.yaml"), "--output", str(home / "out"), "--sample=0"]
    assert main([*words, "--json"]) == 3
    values = json.loads(capsys.readouterr().out)
    fault = {"file": "000001.png", "what": "is damaged: not a whole PNG", "remedy": "delete"}
    assert values == {
        "exit_code": 3,
        "images": 4,
        "good": 3,
        "missing": 0,
        "faults": [fault],
        "sample": [],
    }
