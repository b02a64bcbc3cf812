"""A run continues where the last one ended: whole images stay, the rest is made."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.bench import PROMPTS, Bench
from support.launch import lines, pixels, stamps, summary

from runner.errors import ExitCode, FolderError
from runner.folder import png
from runner.manifest.load import load


def test_the_same_again_touches_nothing_and_loads_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    before = stamps(bench.output)

    def load_again(*_: object) -> None:
        raise AssertionError("a model was loaded for nothing")

    monkeypatch.setattr("runner.render.load.load", load_again)
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before


def test_a_launch_with_nothing_to_do_keeps_the_figures(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.run()
    before = summary(bench.output)
    assert before["made"] == len(PROMPTS)
    assert len(before["replicas"]) == 1
    capfd.readouterr()
    assert bench.run() is ExitCode.COMPLETE
    assert summary(bench.output) == before
    assert "made now" not in capfd.readouterr().err


# Case 26.
def test_broken_files_are_made_again_and_just_those(bench: Bench) -> None:
    bench.run()
    good, before = pixels(bench.output), stamps(bench.output)
    half = (bench.output / "000002.png").read_bytes()
    (bench.output / "000002.png").write_bytes(half[: len(half) // 2])
    (bench.output / "000003.png").write_bytes(b"")
    (bench.output / "000001.png").unlink()
    left_over = bench.output / ".000001.png.dead0000.0a0b0c0d.part"
    left_over.write_bytes(b"x")
    assert bench.run() is ExitCode.COMPLETE
    assert pixels(bench.output) == good
    after = stamps(bench.output)
    assert {name for name in after if after[name] != before[name]} == {
        "000001.png",
        "000002.png",
        "000003.png",
    }
    assert not left_over.exists()
    assert summary(bench.output)["made"] == 3


def test_after_an_unclean_end_files_are_read_whole(bench: Bench) -> None:
    bench.run()
    good, before = pixels(bench.output), stamps(bench.output)
    (journal,) = (bench.output / ".runner" / "journal").glob("*-00000-*.jsonl")
    whole = journal.read_bytes().splitlines(keepends=True)
    # The process died while it wrote the line for image 4, and a block of image 1 was lost.
    journal.write_bytes(b"".join(whole[:4]) + whole[4][:10])
    data = bytearray((bench.output / "000001.png").read_bytes())
    data[-40] ^= 0xFF
    (bench.output / "000001.png").write_bytes(data)
    assert bench.run() is ExitCode.COMPLETE
    assert pixels(bench.output) == good
    after = stamps(bench.output)
    assert {name for name in after if after[name] != before[name]} == {"000001.png"}
    assert len(lines(bench.output / "metadata.jsonl")) == 5


def test_a_folder_without_its_journals_is_adopted(bench: Bench) -> None:
    bench.run()
    before = stamps(bench.output)
    shutil.rmtree(bench.output / ".runner")
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before
    assert len(lines(bench.output / "metadata.jsonl")) == 5


def test_a_drawn_seed_is_kept(bench: Bench) -> None:
    del bench.values["seed"]
    assert bench.run(limit=2) is ExitCode.COMPLETE
    assert bench.run() is ExitCode.COMPLETE
    seeds = [line["seed"] for line in lines(bench.output / "metadata.jsonl")]
    drawn = load(bench.output / "manifest.yaml").manifest.seed
    assert drawn
    assert (drawn.per, len(set(seeds))) == ("prompt", 5)
    other = Bench(bench.write, Path(bench.values["model"]), bench.output.parent / "other")
    other.values = bench.values
    other.run(limit=1)
    assert lines(other.output / "metadata.jsonl")[0]["seed"] != seeds[0]
    (bench.output / "manifest.yaml").unlink()
    (bench.output / "000000.png").unlink()
    words = f"manifest.yaml.* is gone.*--set 'seed={{per: prompt, start: {drawn.start}}}',"
    for ask in (bench.run, bench.status, bench.plan):
        with pytest.raises(FolderError, match=words):
            ask()
    assert not (bench.output / "manifest.yaml").exists()
    bench.values["seed"] = {"per": "prompt", "start": drawn.start}
    assert (bench.plan()["finished"], bench.plan()["remarks"]) == (4, [])


def test_a_seed_that_an_earlier_version_drew(bench: Bench) -> None:
    """It went by the place of an image."""
    bench.values["seed"] = {"start": 99}
    bench.run()
    before = stamps(bench.output)
    del bench.values["seed"]
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before
    (bench.output / "manifest.yaml").unlink()
    with pytest.raises(FolderError, match="is gone.*go on with the seed in 000000.png.*seed=99,"):
        bench.run()


# Case 11: a gap is never a success.
def test_a_lost_image_is_not_complete(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = png.commit

    def forget(path: Path, *given: Any) -> Any:
        done = real(path, *given)
        if path.name == "000003.png":
            path.unlink()
        return done

    monkeypatch.setattr(png, "commit", forget)
    assert bench.run() is ExitCode.INCOMPLETE
    assert summary(bench.output)["missing"] == 1


def test_a_launch_with_nothing_to_do_records_nothing(bench: Bench) -> None:
    """What was chosen stays on record, also where the last launch had no reason to choose."""
    bench.values["strategy"] = "auto"
    bench.run()
    recorded = (bench.output / "manifest.yaml").read_text()
    assert "data_parallel" in recorded
    bench.values["strategy"] = "data_parallel"
    assert bench.run() is ExitCode.COMPLETE
    assert (bench.output / "manifest.yaml").read_text() == recorded
    bench.values["prompts"] = bench.values["prompts"][:-1]
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    assert (bench.output / "manifest.yaml").read_text() != recorded


def test_a_drawn_seed_is_printed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    del bench.values["seed"]
    bench.run()
    drawn = load(bench.output / "manifest.yaml").manifest.seed
    assert drawn
    words = f"seed: {{per: prompt, start: {drawn.start}}}, drawn for this folder; write it"
    assert words in capsys.readouterr().err
