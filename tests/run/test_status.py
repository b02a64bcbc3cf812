"""`runner status`: before, during and after a run."""

import io
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from support.bench import PROMPTS, Bench
from support.jobs import wait_for
from support.launch import lines, summary

from runner import worker
from runner.cli import main
from runner.commands import watch as watch_command
from runner.commands.watch import frame
from runner.errors import ExitCode, FolderError, RunnerError, StrategyError
from runner.launch.stop import Stop
from runner.manifest.load import load
from runner.render import load as load_module
from runner.render.fake import FakePipeline


def test_an_image_that_was_deleted_interrupted_nothing(bench: Bench) -> None:
    bench.run()
    (bench.output / "000004.png").unlink()
    words = bench.status()["sentence"]
    wanted = f"incomplete: 4 of 5 images in {bench.output}; 1 missing; 1 made before and gone since"
    assert words.startswith(wanted)
    assert "last launch" not in words
    bench.values["prompts"].append("snow")
    words = bench.status()["sentence"]
    assert words.startswith("interrupted: 4 of 6 images")
    assert "; 2 missing; 1 made before and gone since; run" in words


def test_the_current_folder_has_a_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run()
    monkeypatch.chdir(bench.output)
    assert main(["status", "manifest.yaml", "--exit-code"]) == 0
    assert capsys.readouterr().out.startswith(f"complete: 5 of 5 images in {bench.output};")


def test_a_long_load_is_announced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def load(*_: Any, stop: Stop, **__: Any) -> FakePipeline:
        wait_for(lambda: shown.append(capsys.readouterr().err) or "loading" in "".join(shown))
        return FakePipeline(stop)

    monkeypatch.setattr(worker, "SAY_AFTER_S", 0.0)
    monkeypatch.setattr(load_module, "load", load)
    bench.run()
    assert "runner: loading the model …\n" in "".join(shown)


def test_status_before_and_after(bench: Bench) -> None:
    report = bench.status()
    assert report["exit_code"] == 75
    assert report["sentence"].startswith("never run: 0 of 5 images")
    theirs = bench.output / "000002.png"
    theirs.parent.mkdir()
    theirs.write_bytes(b"mine")
    with pytest.raises(FolderError, match="000002.png in .*not written by the runner"):
        bench.status()
    theirs.unlink()
    bench.run()
    (bench.output / "000004.png").unlink()
    reports = [bench.output / "metadata.jsonl", bench.output / "summary.json"]
    before = [path.read_bytes() for path in reports]
    bench.values["prompts"][1] = "a blue fox"
    report = bench.status()
    assert report["exit_code"] == 2  # as a run would
    assert (
        'would not make (image 1: prompts[1].prompt "a red fox" → "a blue fox")'
        in report["sentence"]
    )
    bench.values["prompts"][1:] = []
    assert bench.status()["exit_code"] == 2
    assert [path.read_bytes() for path in reports] == before
    bench.values["prompts"] = list(PROMPTS)
    report = bench.status()
    assert (report["outcome"], report["exit_code"], report["missing"]) == ("interrupted", 75, 1)
    assert len(lines(bench.output / "metadata.jsonl")) == 4
    assert bench.status(limit=4)["exit_code"] == 0
    before = [path.stat().st_ino for path in reports]
    assert bench.status()["exit_code"] == 75
    assert [path.stat().st_ino for path in reports] == before  # not written again


def test_status_answers_as_a_run_would_and_loses_nothing(bench: Bench) -> None:
    bench.run()
    picture = bench.output / "000003.png"
    before = picture.read_bytes()
    picture.write_text("mine")
    report = bench.status()
    assert report["exit_code"] == 2
    assert "000003.png in" in report["sentence"]
    picture.write_bytes(before)
    shutil.rmtree(bench.output / ".runner")
    reports = {path: path.read_bytes() for path in bench.output.glob("*.json*")}
    (report, left) = (bench.status(), bench.output / "000004.png")
    assert (report["outcome"], report["done"], report["exit_code"]) == ("complete", 5, 0)
    left.unlink()
    report = bench.status()
    assert (report["done"], report["missing"], report["exit_code"]) == (4, 1, 75)
    bench.values["seed"] = 5
    assert bench.status()["exit_code"] == 2
    assert {path: path.read_bytes() for path in bench.output.glob("*.json*")} == reports
    assert not (bench.output / ".runner").exists()


def test_status_knows_of_a_refusal(bench: Bench) -> None:
    bench.values["strategy"] = {"kind": "context_parallel", "ulysses_degree": 2}
    with pytest.raises(StrategyError) as refused:
        bench.run()
    with pytest.raises(RunnerError, match=re.escape(str(refused.value))) as again:
        bench.status()
    assert again.value.exit_code is ExitCode.REFUSED
    del bench.values["strategy"]
    assert bench.run() is ExitCode.COMPLETE
    assert bench.status()["exit_code"] == 0


def test_status_while_a_job_works(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None]
) -> None:
    report: list[dict[str, Any]] = []

    def ask() -> None:
        wait_for(lambda: bench.status()["done"] == 3)
        report.append(bench.status())
        assert not (bench.output / "metadata.jsonl").exists()

    at_image(3, ask)
    assert bench.run() is ExitCode.COMPLETE
    assert (report[0]["outcome"], report[0]["exit_code"], report[0]["made"]) == ("running", 75, 3)
    # Always the rate since the launch began.
    last = summary(bench.output)
    for one in (*report, last, bench.status()):
        rate = one["made"] / one["seconds"]
        assert one["images_per_second"] == pytest.approx(rate, rel=0.01)
    assert bench.status()["seconds"] == last["seconds"]


def test_status_and_a_run_agree_while_a_sibling_shard_writes(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None]
) -> None:
    report: list[dict[str, Any]] = []

    def sibling() -> None:
        wait_for(lambda: bench.status()["done"] == 1)
        assert bench.run(part=(2, 2)) is ExitCode.COMPLETE
        report.extend([summary(bench.output), bench.status(part=(2, 2)), bench.status()])

    at_image(2, sibling)
    assert bench.run(part=(1, 2)) is ExitCode.COMPLETE
    assert [(one["done"], one["missing"]) for one in report] == [(3, 2)] * 3
    assert [one["made"] for one in report[:2]] == [2, 2]
    assert [one["exit_code"] for one in report] == [0, 0, 75]
    assert summary(bench.output)["done"] == bench.status()["done"] == 5


def test_a_summary_with_a_launch_of_wrong_types(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None]
) -> None:
    report: list[dict[str, Any]] = []

    def ask() -> None:
        path, values = bench.output / "summary.json", summary(bench.output)
        wrong = ({"id": []}, {"started": "now"}, {"seconds": {}}, {"generation": None})
        for launch in (7, *({**values["launch"], **one} for one in wrong)):
            path.write_text(json.dumps({**values, "launch": launch}))
            report.append(bench.status())

    at_image(4, ask)
    bench.run()
    assert {one["outcome"] for one in report} == {"running"}
    assert len(report) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": [None, {"replica": 0}, "x"], "timeline": [1]},
        {"replicas": "x", "timeline": {"span_s": "x", "replicas": []}},
        {"accounting": {}},
        {"accounting": None, "images_per_second": None},
        {"seconds": "x"},
        {"errors": 7},
    ],
)
def test_a_summary_of_wrong_types(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None], changes: dict[str, Any]
) -> None:
    """Edited, or written by another version, while the job works and after it."""
    report: list[dict[str, Any]] = []

    def ask() -> None:
        path = bench.output / "summary.json"
        path.write_text(json.dumps({**summary(bench.output), **changes}))
        report.append(bench.status())
        Console(file=io.StringIO()).print(frame(report[-1]))

    at_image(4, ask)
    bench.run()
    ask()
    assert [one["outcome"] for one in report] == ["running", "complete"]
    assert all(isinstance(row, dict) for one in report for row in one["replicas"])


def test_a_pipe_in_place_of_the_summary_of_a_part(bench: Bench) -> None:
    bench.run(limit=1)
    os.mkfifo(bench.output / ".runner/summary-1-of-2.json")
    assert bench.status(part=(1, 2))["done"] == 1


def test_status_after_a_part_of_the_job(bench: Bench) -> None:
    assert bench.run(limit=3) is ExitCode.COMPLETE
    report = bench.status()
    assert (report["outcome"], report["exit_code"], report["missing"]) == ("limited", 75, 2)
    assert "run without --limit, or run the other shards" in report["sentence"]
    assert bench.status(limit=3)["exit_code"] == 0
    (bench.output / "000001.png").unlink()  # now it is not as it was left
    assert bench.status()["outcome"] == "interrupted"


def test_status_tells_of_images_without_a_manifest(bench: Bench) -> None:
    bench.run(limit=3)
    (bench.output / "manifest.yaml").unlink()
    report = bench.status()
    assert report["exit_code"] == 75
    assert "manifest.yaml is gone" in report["sentence"]
    assert "3 of 5 images" in report["sentence"]
    shutil.rmtree(bench.output / ".runner")
    assert bench.status() == report
    assert not (bench.output / ".runner").exists()


def test_what_watch_shows() -> None:
    row = {
        "replica": 0,
        "host": "gpu-[bold]7",
        "state": "silent",
        "images": 3,
        "failed": 1,
        "images_per_second": 0.25,
        "last_sign_s": 41.0,
        "device": "NVIDIA H200",
        "devices": 2,
        "memory_peak": 2**33,
    }
    spent = {"launches": 2, "process_hours": 1.5, "gpu_hours": 3.0, "images": 9, "failed": 1}
    values = {
        "images": 8,
        "done": 3,
        "sentence": "running: 3 of 8 images in o\x1b[31m",
        "current_images_per_second": 0.5,
        "replicas": [row],
        "accounting": spent,
    }
    console = Console(width=100, file=io.StringIO())
    console.print(frame(values))
    console.print(frame({"images": 8, "sentence": "never run: 0 of 8 images in o"}))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "running: 3 of 8 images in o\ufffd[31m" in shown
    assert re.search(
        r"0 +gpu-\[bold\]7 +silent +3 +1 +0\.25 +41 s ago +2 × NVIDIA H200 +8\.0 GiB", shown
    )
    assert "2 launches in all: 1.50 process-hours, 3.00 GPU-hours; 9 images, 1 failed" in shown
    assert "never run" in shown


def test_watch_ends_with_the_job(
    bench: Bench,
    at_image: Callable[[int, Callable[[], None]], None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_command, "REFRESH_S", 0.2)
    path = bench.write(**bench.values)
    watching = threading.Thread(target=watch_command.watch, args=(load(path), bench.output, None))

    def begin() -> None:
        wait_for(lambda: bench.status()["outcome"] == "running")
        watching.start()

    at_image(3, begin)
    assert bench.run() is ExitCode.COMPLETE
    watching.join(60)
    assert not watching.is_alive()
    assert "complete: 5 of 5 images" in " ".join(capfd.readouterr().out.split())
