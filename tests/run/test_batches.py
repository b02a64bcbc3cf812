"""Images made in batches: of a fixed size, and of sizes found by trial."""

from typing import Any

import numpy as np
import pytest
from support.bench import PROMPTS, Bench
from support.launch import lines, pixels, stamps, summary

from runner.errors import ExitCode
from runner.manifest.load import parse
from runner.prepare import batch_sizes as probe


# Case 2: batches move the low bits at most.
def test_batches_do_not_move_the_picture(bench: Bench) -> None:
    bench.run()
    one = pixels(bench.output)
    for size in (2, 4):
        bench.values["batch_size"] = size
        bench.output = bench.output.parent / f"batch{size}"
        bench.run()
        for name, data in pixels(bench.output).items():
            here = np.frombuffer(data, np.uint8).astype(int)
            assert np.abs(here - np.frombuffer(one[name], np.uint8)).max() <= 1
        assert {line["batch_size"] for line in lines(bench.output / "metadata.jsonl")} <= {
            size,
            len(PROMPTS) % size,
        }


def test_a_part_of_a_batch_is_made_with_the_whole(bench: Bench) -> None:
    bench.values["batch_size"] = 3
    bench.run()
    good, before = pixels(bench.output), stamps(bench.output)
    (bench.output / "000001.png").unlink()
    bench.run()
    assert pixels(bench.output) == good
    changed = [name for name, stamp in stamps(bench.output).items() if stamp != before[name]]
    assert changed == ["000001.png"]


def test_found_once_recorded_and_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def found(renderer: Any, tasks: Any, replicas: int, *_: Any, **__: Any) -> dict[str, int]:
        asked.append(len([*tasks]))
        return {"default": 3}

    monkeypatch.setattr(probe, "probe", found)
    bench.values["batch_size"] = "auto"
    bench.values["prompts"] = [f"cat {number}" for number in range(7)]
    bench.run(limit=4)
    assert asked == [7]
    recorded = parse(bench.output / "manifest.yaml")[0]
    assert (recorded.batch_size, recorded.batch_sizes) == ("auto", {"default": 3})
    assert summary(bench.output)["launch"]["batch_sizes"] == {"default": 3}
    bench.run()
    bench.run(part=(1, 2))
    assert asked == [7]
    sizes = [line["batch_size"] for line in lines(bench.output / "metadata.jsonl")]
    assert sizes == [3, 3, 3, 3, 3, 3, 1]


def test_a_part_of_the_plan_is_cut_from_the_batches_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_, **__: {"default": 2})
    bench.values["batch_size"] = "auto"
    bench.values["prompts"] = [f"cat {number}" for number in range(6)]
    bench.run(part=(2, 2))
    assert [path.stem for path in sorted(bench.output.glob("*.png"))] == ["000002", "000003"]


def test_a_part_that_is_done_in_single_images_waits_for_the_batches_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_, **__: {"default": 2})
    bench.values["prompts"] = [f"cat {number}" for number in range(6)]
    bench.run(part=(2, 2))  # 1, 3, 5
    bench.values["batch_size"] = "auto"
    bench.run(part=(2, 2))  # 2 and 3 are its batch now
    assert bench.run(part=(1, 2)) is ExitCode.COMPLETE
    assert len(pixels(bench.output)) == 6
    assert summary(bench.output)["outcome"] == "complete"


def test_a_complete_folder_needs_no_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_, **__: pytest.fail("tried"))
    bench.run()
    bench.values["batch_size"] = "auto"
    assert bench.run() is ExitCode.COMPLETE
    assert bench.run(part=(2, 2)) is ExitCode.COMPLETE
