"""Ranks that die: the others, the restart, the next run."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import SUPPORT
from support.jobs import Job, ended, kill, running, wait_for, workers

from runner.errors import InterruptedRunError
from runner.launch.crashes import Crashes, deaths, quarantined, split_batch
from runner.launch.store import LocalStore


# Case 36.
def test_a_rank_killed_at_an_image_ends_the_job_and_the_next_run_completes(tmp_path: Path) -> None:
    job = Job(tmp_path, 12)
    end = job.run(processes=2, hooks={"seconds": 0.2, "kill": {"prompt 5": 1}})
    assert end.code == 1
    assert end.seconds < 40
    assert job.partial_files() == []
    assert 0 < len(job.images()) < 12
    assert job.status() == 75
    assert job.run(processes=2).code == 0
    assert len(job.images()) == 12
    assert job.failures() == []  # a kill from outside marks no image


def test_a_rank_that_cannot_load_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, 12)
    end = job.run(processes=2, hooks={"seconds": 0.2, "load_fails_on": 1})
    assert end.code == 1
    assert end.seconds < 40
    assert job.status() == 75
    assert any("no weights today" in error for error in job.summary()["errors"])
    assert job.run(processes=2).code == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_an_image_that_kills_its_process_twice_is_given_up(tmp_path: Path, processes: int) -> None:
    job = Job(tmp_path, 12, batch_size=3)
    hooks = {"seconds": 0.1, "kill": {"prompt 4": 99}, "signal": "SIGSEGV"}
    end = job.run(processes=processes, restarts=3, hooks=hooks)
    assert end.code == 1
    assert [(f["index"], f["kind"]) for f in job.failures()] == [(4, "crashed")]
    assert len(job.images()) == 11
    assert job.status() == 3
    degraded = {line["index"] for line in job.metadata() if line["degraded"]}
    assert degraded <= {3, 5}
    # A new command tries again.
    assert job.run(processes=processes).code == 0
    assert len(job.images()) == 12


def test_an_image_that_kills_its_process_once_is_made_by_the_restart(tmp_path: Path) -> None:
    job = Job(tmp_path, 12)
    hooks = {"seconds": 0.1, "kill": {"prompt 4": 1}}
    assert job.run(processes=2, restarts=1, hooks=hooks).code == 0
    assert len(job.images()) == 12


@pytest.mark.parametrize("what", ["failures", "stop file", "refusal"])
def test_a_restart_adds_nothing_where_there_is_nothing_to_gain(tmp_path: Path, what: str) -> None:
    job = Job(tmp_path, 12)
    hooks = {"seconds": 0.3, "raise": ["prompt 3"] if what == "failures" else []}
    if what == "refusal":
        job.output.mkdir()
        (job.output / "000003.png").write_bytes(b"mine")
        (job.output / ".runner").mkdir()
    with running(job.start(processes=2, restarts=2, hooks=hooks)) as process:
        if what == "stop file":
            job.wait_for_images(2)
            (job.output / ".runner" / "stop").touch()
        end = ended(process, 150)
    assert end.code == 1
    assert end.err.count("000003.png in") == (what == "refusal")
    generations = {path.name[:6] for path in (job.output / ".runner" / "journal").glob("*")}
    assert len(generations) == (what != "refusal")
    if what != "refusal":
        assert job.status() == {"failures": 3, "stop file": 75}[what]


def ranks_of(launcher: int) -> list[psutil.Process]:
    """The living ones: while it restarts, one that ends goes on making its image."""
    return [rank for rank in workers(launcher) if rank.status() != psutil.STATUS_ZOMBIE]


def test_ranks_ended_for_a_neighbour_are_not_to_blame(tmp_path: Path) -> None:
    """Rank 0 dies by an image; the launcher ends rank 1, which is at another."""
    job = Job(tmp_path, 8)
    with running(job.start(processes=2, restarts=3, hooks={"seconds": 1.0})) as process:
        for _ in range(2):
            wait_for(lambda: len(ranks_of(process.pid)) == 2)
            job.wait_for_images(len(job.images()) + 1)
            kill(ranks_of(process.pid)[0], signal.SIGKILL)
        end = ended(process, 90)
    assert end.code == 0, end.err
    assert job.failures() == []
    assert len(job.images()) == 8


def test_the_count_of_deaths() -> None:
    store = LocalStore()
    assert deaths(store, 2) == {}
    Crashes(store, 0)._note((4, 5))
    ended_by_launcher = Crashes(store, 1)
    ended_by_launcher._note((6, 7))
    ended_by_launcher.clear()
    with pytest.raises(InterruptedRunError), Crashes(store, 1).during((8,)):
        raise InterruptedRunError
    assert deaths(store, 2) == {4: 1, 5: 1}
    assert split_batch((3, 4), {4: 1, 5: 1}) == [(3,), (4,)]
    assert split_batch((0, 1), {4: 1, 5: 1}) == [(0, 1)]
    with pytest.raises(ZeroDivisionError), Crashes(store, 1).during((5,)):
        1 / 0  # noqa: B018
    assert quarantined(deaths(store, 2)) == [5]
    assert split_batch((4, 5), {4: 1, 5: 2}) == [(4,)]


def test_shards_that_start_at_once_draw_one_seed(tmp_path):
    """Without a seed in the manifest, the first to come draws it for all."""
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"model": "demo", "prompts": ["a", "b", "c", "d"]}))
    hooked = SUPPORT / "hooked.py"
    output = tmp_path / "out"
    command = [sys.executable, str(hooked), "{}", str(path), "--output", str(output), "--shard"]
    running = [
        subprocess.Popen([*command, part], stderr=subprocess.PIPE, text=True)
        for part in ("1/2", "2/2")
    ]
    for process in running:
        _, words = process.communicate(timeout=120)
        assert process.returncode == 0, words
        assert "; 2 made now" in words  # not the other's
    status = subprocess.run(
        [sys.executable, "-m", "runner", "status", str(path), "--output", str(output)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(status.stdout)["outcome"] == "complete", status.stdout
    seeds = [json.loads(line)["seed"] for line in (output / "metadata.jsonl").open()]
    assert seeds == list(range(seeds[0], seeds[0] + 4))
