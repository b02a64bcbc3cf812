"""A list of prompts that moves: finished images go along, and only new ones are made."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.bench import PROMPTS, Bench
from support.launch import lines, pixels, stamps, summary
from support.launches import Launcher
from support.moving import by_fingerprint, move_list

from runner.cli import main
from runner.errors import ExitCode, FolderError
from runner.folder import arrange, owners
from runner.folder.lock import FolderLock
from runner.folder.paths import OutputFolder
from runner.folder.png import read_text
from runner.render import load as load_module
from runner.render.fake import FakePipeline
from runner.render.results import Failure


class Flagged(FakePipeline):
    """Flags every picture with "fox", and leaves it out."""

    def render(self, tasks: Any, degraded: Any = ()) -> Any:
        rendered = super().render(tasks, degraded)
        for result in rendered.results:
            if "fox" in result.task.prompt:
                result.made["flagged"] = "black"
        return rendered


class Skipping(FakePipeline):
    """Leaves every picture with "fox" out."""

    tried = 0

    def render(self, tasks: Any, degraded: Any = ()) -> Any:
        rendered = super().render(tasks, degraded)
        for place, result in enumerate(rendered.results):
            if "fox" in result.task.prompt:
                Skipping.tried += 1
                rendered.results[place] = Failure(result.task, "skipped", "flagged: black", "")
        return rendered


@pytest.fixture
def bench(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(load_module, "load", lambda *_, stop, **__: FakePipeline(stop))
    bench.values |= {"seed": {"per": "prompt"}, "prompts": list(PROMPTS)}
    bench.run()
    return bench


def places(bench: Bench) -> dict[str, int]:
    return dict(bench.plan()["places"])


# Invariant 7.
def test_a_prompt_put_first_makes_one_image(bench: Bench) -> None:
    before = by_fingerprint(bench.output)
    bench.values["prompts"].insert(0, "snow")
    assert places(bench) == {"stay": 0, "move": 5, "make": 1, "again": 0, "gone": 0}
    assert "1 of 6 images" not in bench.status()["sentence"]
    assert "5 images will only be moved" in bench.status()["sentence"]
    assert stamps(bench.output).keys() == {f"{index:06d}.png" for index in range(5)}
    assert bench.run() is ExitCode.COMPLETE
    after = by_fingerprint(bench.output)
    assert before.items() < after.items()
    assert (summary(bench.output)["made"], summary(bench.output)["done"]) == (1, 6)
    rows = lines(bench.output / "metadata.jsonl")
    assert [row["prompt"] for row in rows] == ["snow", *PROMPTS]
    assert [row["index"] for row in rows] == list(range(6))
    assert places(bench) == {"stay": 6, "move": 0, "make": 0, "again": 0, "gone": 0}
    # What it was when it was made; nothing reads its place from there.
    assert (read_text(bench.output / "000005.png") or {})["index"] == "4"


def test_a_prompt_put_first_where_no_seed_is_given(bench: Bench) -> None:
    """The first try of a user: nothing said of seeds."""
    bench.output = bench.output.parent / "unseeded"
    del bench.values["seed"]
    bench.run()
    before = by_fingerprint(bench.output)
    bench.values["prompts"].insert(0, "snow")
    assert bench.run() is ExitCode.COMPLETE
    assert before.items() < by_fingerprint(bench.output).items()
    assert summary(bench.output)["made"] == 1


def test_a_prompt_put_first_where_seeds_go_by_place(bench: Bench) -> None:
    bench.output = bench.output.parent / "seeded"
    bench.values["seed"] = 42
    bench.run()
    before = stamps(bench.output)
    bench.values["prompts"].insert(0, "snow")
    words = (
        r"\(images 0, 1, 2, 3, 4: seed goes by the place in the list, which is another now\); "
        r"put new prompts at the end of the list, or begin a new folder with seed: {per: prompt},"
    )
    with pytest.raises(FolderError, match=words):
        bench.run()
    assert stamps(bench.output) == before
    bench.values["prompts"].append(bench.values["prompts"].pop(0))
    assert bench.run() is ExitCode.COMPLETE
    assert before.items() < stamps(bench.output).items()


def test_the_move_is_shown_before(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.values["prompts"] = ["snow", *PROMPTS[2:], PROMPTS[0]]
    path = bench.write(**bench.values)
    assert main(["plan", str(path), "--output", str(bench.output)]) == 0
    shown = capsys.readouterr().out
    assert "list       0 stay, 4 move, 1 to make, 1 no longer in the list" in shown
    assert "(image 1: no longer in the list)" in shown


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [1, 0, 3, 4, 2]])
def test_another_order_makes_nothing(bench: Bench, order: list[int]) -> None:
    before = by_fingerprint(bench.output)
    bench.values["prompts"] = [PROMPTS[place] for place in order]
    assert bench.run() is ExitCode.COMPLETE
    assert by_fingerprint(bench.output) == before
    assert [row["prompt"] for row in lines(bench.output / "metadata.jsonl")] == bench.values[
        "prompts"
    ]
    recorded = (bench.output / "manifest.yaml").read_text()
    assert recorded.index(PROMPTS[order[0]]) < recorded.index(PROMPTS[order[1]])


def test_one_more_variation_of_each(bench: Bench) -> None:
    before = by_fingerprint(bench.output)
    bench.values["variations"] = 2
    assert places(bench) == {"stay": 1, "move": 4, "make": 5, "again": 0, "gone": 0}
    assert bench.run() is ExitCode.COMPLETE
    assert before.items() < by_fingerprint(bench.output).items()
    bench.values["variations"] = 1
    with pytest.raises(FolderError, match="no longer in the list"):
        bench.run()
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    assert by_fingerprint(bench.output) == before


def test_a_shorter_list_can_be_verified(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    del bench.values["prompts"][1:]
    bench.run(regenerate=True)
    path = bench.write(**bench.values)
    assert main(["verify", str(path), "--output", str(bench.output), "--sample", "0"]) == 0
    assert "1 of 1 image" in capsys.readouterr().out


def test_image_folders_and_a_list_that_moves(bench: Bench) -> None:
    bench.values["output"] = {"images_per_folder": 2}
    bench.output = bench.output.parent / "folders"
    bench.run()
    made = {row["fingerprint"] for row in lines(bench.output / "metadata.jsonl")}
    bench.values["prompts"].insert(0, "snow")
    assert bench.run() is ExitCode.COMPLETE
    rows = lines(bench.output / "metadata.jsonl")
    assert made == {row["fingerprint"] for row in rows[1:]}
    for row in rows:
        text = read_text(bench.output / row["file_name"]) or {}
        assert text["fingerprint"] == row["fingerprint"]


# Case 28: what changed.
def test_what_changed_is_said(bench: Bench) -> None:
    def words() -> str:
        with pytest.raises(FolderError) as caught:
            bench.run()
        return str(caught.value)

    bench.values["prompts"][1] = "a blue fox"
    assert 'image 1: prompts[1].prompt "a red fox" → "a blue fox")' in words()
    bench.values["prompts"] = [*PROMPTS[:3], {"prompt": PROMPTS[3], "seed": 1}, PROMPTS[4]]
    seed = lines(bench.output / "metadata.jsonl")[3]["seed"]
    assert f"(image 3: prompts[3].seed {seed} → 1)" in words()
    bench.values["prompts"] = list(PROMPTS)
    bench.values["parameters"]["num_inference_steps"] = 3
    assert "(images 0, 1, 2, 3, 4: num_inference_steps 2 → 3)" in words()
    bench.values["parameters"]["guidance_scale"] = 3.5
    assert "3, guidance_scale 3.5, not given before)" in words()
    bench.values["prompts"] = ["moon"]
    assert "000001.png, 000002.png, 000003.png, 000004.png: no longer in the list" in words()


def test_a_prompt_that_was_taken_out_is_not_one_that_was_edited(bench: Bench) -> None:
    """Where the list moved, what stands at an image's place now is another prompt."""
    _, second, *others = PROMPTS
    bench.values |= {"prompts": ["snow", *reversed(others), PROMPTS[0]], "variations": 2}
    with pytest.raises(FolderError, match=r"\(image 1: no longer in the list\)"):
        bench.run()
    # With seeds by place nothing can move, but the list did.
    bench.output = bench.output.parent / "by place"
    bench.values = {**bench.values, "seed": 3, "prompts": list(PROMPTS), "variations": 1}
    bench.run()
    bench.values["prompts"] = ["snow", PROMPTS[0], *others]
    with pytest.raises(FolderError, match=r"[(;] ?image 1: no longer in the list[;)]"):
        bench.run()
    bench.values |= {"prompts": ["snow", second, *others, PROMPTS[0]]}
    assert places(bench) == {"stay": 4, "move": 0, "make": 2, "again": 1, "gone": 0}


def test_images_to_be_made_again_are_still_in_the_list(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.values["parameters"]["num_inference_steps"] = 3
    assert places(bench) == {"stay": 0, "move": 0, "make": 5, "again": 5, "gone": 0}
    path = bench.write(**bench.values)
    capsys.readouterr()
    assert main(["plan", str(path), "--output", str(bench.output)]) == 0
    assert "list       0 stay, 0 move, 5 to make again\n" in capsys.readouterr().out
    bench.values["prompts"] = [*PROMPTS[1:], "snow"]
    assert places(bench) == {"stay": 0, "move": 0, "make": 5, "again": 4, "gone": 1}


def test_equal_images_may_take_each_others_place(bench: Bench) -> None:
    bench.output = bench.output.parent / "equal"
    bench.values |= {"seed": {"fixed": 1}, "prompts": ["a", "b", "a", "b"]}
    bench.run()
    before = sorted(stamps(bench.output).values())
    bench.values["prompts"] = ["b", "a", "a", "b"]
    assert places(bench) == {"stay": 2, "move": 2, "make": 0, "again": 0, "gone": 0}
    assert bench.run() is ExitCode.COMPLETE
    assert sorted(stamps(bench.output).values()) == before
    found = pixels(bench.output)
    assert found["000000.png"] == found["000003.png"] != found["000001.png"]


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_flagged_images_go_along(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(load_module, "load", lambda *_, stop, **__: Flagged(stop))
    bench.output = bench.output.parent / policy
    bench.run()
    bench.values["on_flagged"] = policy
    bench.values["prompts"].insert(0, "snow")
    bench.run()
    (row,) = lines(bench.output / "failures.jsonl")
    assert (row["index"], row["prompt"]) == (2, "a red fox")
    assert summary(bench.output)["made"] == 1
    assert (bench.output / "000002.png").exists()


def test_what_was_left_out_stays_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "load", lambda *_, stop, **__: Skipping(stop))
    bench.output = bench.output.parent / "skipping"
    bench.values |= {"on_flagged": "skip", "prompts": ["a red fox", "snow"]}
    assert bench.run() is ExitCode.COMPLETE
    bench.values["prompts"] = ["snow", "a red fox"]
    assert bench.status()["skipped"] == 1
    assert bench.run() is ExitCode.COMPLETE
    (row,) = lines(bench.output / "failures.jsonl")
    assert (row["index"], row["kind"], Skipping.tried) == (1, "skipped", 1)
    bench.values["prompts"] = ["a red fox"]
    with pytest.raises(FolderError, match="no longer in the list"):
        bench.run()
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    assert bench.status()["skipped"] == Skipping.tried == 1


def test_a_file_that_takes_the_new_place_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = arrange.in_order

    def meanwhile(moves: Any) -> Any:
        (bench.output / "000005.png").write_bytes(b"mine")
        return real(moves)

    monkeypatch.setattr(arrange, "in_order", meanwhile)
    bench.values["prompts"].insert(0, "snow")
    with pytest.raises(FolderError, match=r"000005.png: something put it there"):
        bench.run()
    assert (bench.output / "000005.png").read_bytes() == b"mine"
    assert len(stamps(bench.output)) == 6


def test_a_sibling_with_another_list_keeps_its_images(bench: Bench) -> None:
    folder = OutputFolder(bench.output, bench.job().loaded.manifest.output)
    sibling = FolderLock(folder, "0badcafe", (1, 2))
    sibling.acquire()
    try:
        bench.values["prompts"].insert(0, "snow")
        before = stamps(bench.output)
        sibling.note_list(1)
        with pytest.raises(FolderError, match=r"another list of prompts \(process \d+"):
            bench.run(part=(2, 2))
        assert stamps(bench.output) == before
        owner = owners.describe("0badcafe", (1, 2))  # it has not looked yet
        sibling.path.write_text(json.dumps(owner))
        assert bench.run(part=(2, 2)) is ExitCode.COMPLETE
    finally:
        sibling.release()
    assert bench.run(part=(1, 2)) is ExitCode.COMPLETE
    assert summary(bench.output)["outcome"] == "complete"
    assert before.items() != stamps(bench.output).items()
    assert set(before.values()) < set(stamps(bench.output).values())


def test_an_image_set_aside_is_found_again(bench: Bench) -> None:
    """As a kill within a circle leaves it."""
    before = by_fingerprint(bench.output)
    row = lines(bench.output / "metadata.jsonl")[2]
    name = f".{row['fingerprint']}.00000000.moving"
    os.rename(bench.output / "000002.png", bench.output / name)
    assert places(bench) == {"stay": 4, "move": 1, "make": 0, "again": 0, "gone": 0}
    assert bench.run() is ExitCode.COMPLETE
    assert by_fingerprint(bench.output) == before
    assert not (bench.output / name).exists()


def test_two_names_of_one_file_become_one(bench: Bench) -> None:
    """As a kill between the new name and the end of the old one leaves it."""
    before = by_fingerprint(bench.output)
    bench.values["prompts"] = PROMPTS[1:]
    (bench.output / "000000.png").unlink()
    os.link(bench.output / "000001.png", bench.output / "000000.png")
    assert bench.run() is ExitCode.COMPLETE
    after = by_fingerprint(bench.output)
    assert len(after) == 4
    assert after.items() < before.items()


@pytest.mark.parametrize("shuffles", [False, True])
def test_kills_while_the_list_moves(ranks: Launcher, tmp_path: Path, shuffles: bool) -> None:
    moved = move_list(ranks, tmp_path, 40, 4, 3, shuffles=shuffles)
    assert moved.made == moved.wanted
    assert moved.kept == moved.before - 6
    assert moved.killed


def test_ids_that_are_swapped_swap_the_files(bench: Bench) -> None:
    """Both files are equally long, and the journals know images by their places."""
    bench.output = bench.output.parent / "named"
    bench.values |= {"output": {"name": "{id}/{variation:02}"}, "seed": {"fixed": 1}}
    first, second = {"prompt": "a cat", "id": "x"}, {"prompt": "a dog", "id": "y"}
    bench.values["prompts"] = [first, second]
    bench.run()
    before = {name: (bench.output / name).read_bytes() for name in ("x/00.png", "y/00.png")}
    assert len({len(data) for data in before.values()}) == 1
    first["id"], second["id"] = "y", "x"
    assert places(bench) == {"stay": 0, "move": 2, "make": 0, "again": 0, "gone": 0}
    assert bench.run() is ExitCode.COMPLETE
    assert (bench.output / "x/00.png").read_bytes() == before["y/00.png"]
    assert (bench.output / "y/00.png").read_bytes() == before["x/00.png"]
    rows = lines(bench.output / "metadata.jsonl")
    assert [(row["file_name"], row["prompt"]) for row in rows] == [
        ("y/00.png", "a cat"),
        ("x/00.png", "a dog"),
    ]


def test_shards_that_start_together_move_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, moved = by_fingerprint(bench.output), list[int]()
    real = arrange.in_order

    def counted(moves: Any) -> Any:
        moved.append(len(moves))
        return real(moves)

    monkeypatch.setattr(arrange, "in_order", counted)
    bench.values["prompts"] = ["snow", *PROMPTS[::-1], "rain"]
    path = bench.write(**bench.values)
    bench.write = lambda **_: path  # type: ignore[method-assign,assignment]
    codes: list[ExitCode] = []
    parts = [
        threading.Thread(target=lambda part=part: codes.append(bench.run(part=(part, 3))))
        for part in (1, 2, 3)
    ]
    for thread in parts:
        thread.start()
    for thread in parts:
        thread.join(120)
    assert codes == [ExitCode.COMPLETE] * 3
    assert [count for count in moved if count] == [5]
    assert summary(bench.output)["outcome"] == "complete"
    assert before.items() < by_fingerprint(bench.output).items()
