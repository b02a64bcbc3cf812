"""How a working job stands, seen from another process: the files alone say it."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.jobs import Job, ended, kill_tree, running, wait_for

from runner.commands.status import status
from runner.folder import live
from runner.manifest.load import load


def of(job: Job) -> dict[str, Any]:
    return status(load(job.manifest), job.output, None, None)


def states(job: Job) -> dict[int, str]:
    return {row["replica"]: row["state"] for row in of(job)["replicas"]}


def test_four_ranks_and_one_of_them_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 48)
    job.hold(2, 47)  # where it is stopped, and so that the job does not end meanwhile
    with running(job.start(processes=4, hooks={"seconds": 0.1, "silent_after": 2})) as process:
        second = job.wait_for_process_at(2)
        job.wait_for_images(4)
        second.suspend()
        wait_for(lambda: states(job).get(2) == "silent")
        wait_for(lambda: len(job.images()) == 46)  # all but what two of them are at
        wait_for(lambda: of(job)["done"] == 46)
        seen = of(job)
        assert (seen["outcome"], seen["failed"], seen["missing"]) == ("running", 0, 2)
        assert (seen["exit_code"], seen["made"]) == (75, 46)
        assert seen["sentence"].startswith(f"running: 46 of 48 images in {job.output}; 46 made so")
        wait_for(lambda: sum(row["images"] for row in of(job)["replicas"]) > 44)
        rows = of(job)["replicas"]
        assert [row["ranks"] for row in rows] == [[0], [1], [2], [3]]
        assert len({row["host"] for row in rows}) == 1
        # Rank 0 writes what everybody reads: it is stopped, too.
        monkeypatch.setattr(live, "SILENT_AFTER_S", 2)
        monkeypatch.setattr(live, "FRESH_S", 1)
        first = job.wait_for_process_at(0)
        first.suspend()
        wait_for(lambda: states(job)[0] == "silent")
        assert of(job)["done"] == 46
        first.resume()
        wait_for(lambda: states(job)[0] != "silent")
        second.resume()
        job.release(2, 47)
        assert ended(process).code == 0
    last = job.summary()
    assert (last["outcome"], last["done"]) == ("complete", 48)
    assert {row["state"] for row in last["replicas"]} <= {"ended", "lost"}
    assert "48 made by the last launch" in of(job)["sentence"]
    images = [row["images"] for row in last["timeline"]["replicas"]]
    assert sum(map(sum, images)) >= 46
    assert [len(row["busy_s"]) for row in last["timeline"]["replicas"]] == list(map(len, images))


def logs(job: Job) -> dict[str, list[dict[str, Any]]]:
    """Rank and rows of each log file."""
    paths = sorted((job.output / ".runner/logs").glob("rank-*.log"))
    return {path.name: [json.loads(line) for line in path.open()] for path in paths}


def test_every_log_line_is_json_also_after_a_kill(tmp_path: Path) -> None:
    job = Job(tmp_path, 24)
    options = ("--log-format", "json")
    hooks = {"seconds": 0.05, "raise": ["prompt 3"], "trace": "Traceback: here"}
    with running(job.start(*options, processes=2, hooks=hooks)) as process:
        job.wait_for_images(6)
        kill_tree(process.pid)
        killed = ended(process)
    for line in killed.err.splitlines():
        assert json.loads(line)["message"]
    assert list(logs(job)) == ["rank-00000.log", "rank-00001.log"]
    torn = job.output / ".runner/logs/rank-00001.log"
    with torn.open("a") as file:
        file.write('{"time": "2026-')
    done = job.run(*options, processes=2, hooks=hooks)
    rows = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert rows[-1]["message"].startswith("failed: 23 of 24 images")
    lines = logs(job)["rank-00001.log"]
    assert sum("rank 1 of 2" in row["message"] for row in lines) == 2  # both launches
    # The failure, its traceback, and where to read on.
    first = job.summary()["first_error"]
    assert (first["error"], first["traceback"]) == ("ValueError: asked for", "Traceback: here")
    assert str(job.output / first["log"]) in rows[-1]["message"]
    messages = [row["message"] for row in logs(job)[Path(first["log"]).name]]
    assert "image 3: ValueError: asked for\nTraceback: here" in messages


def test_the_accounts_of_a_killed_launch_and_of_the_next(tmp_path: Path) -> None:
    job = Job(tmp_path, 8, strategy="data_parallel")
    job.hold(7)
    with running(job.start(hooks={"accounts_at_once": True})) as process:
        job.wait_for_images(7)
        wait_for(lambda: of(job)["accounting"]["images"] == 7)
        metrics = (job.output / ".runner/metrics.prom").read_text()
        assert "runner_running" in metrics
        wait_for(lambda: sum("spent" in line for line in job.journal()) > 1)
        kill_tree(process.pid)
    job.release(7)
    assert job.run().code == 0
    values = of(job)["accounting"]
    assert values["launches"] == 2
    assert 1 <= values["images"] <= 8  # what the last line before the kill says, and one
    assert values["by_launch"][1]["images"] == 1
    assert list(values["by_strategy"]) == ["data_parallel"]
    assert 0 < values["process_hours"] < 1
    text = (job.output / ".runner/metrics.prom").read_text()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"runner_images_done", "runner_replica_images", "runner_process_hours"} <= names
    assert f'runner_running{{folder="{job.output}"}} 0' in text
