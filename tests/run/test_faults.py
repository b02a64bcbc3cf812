"""Ranks that die: the others, the restart, the next run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import SUPPORT
from support.jobs import ENVIRONMENT, Job, ended, kill, running

from runner.errors import InterruptedRunError
from runner.launch import crashes
from runner.launch.crashes import Crashes, deaths, quarantined, split_batch
from runner.launch.store import LocalStore


# Case 36.
def test_a_rank_killed_at_an_image_ends_the_job_and_the_next_run_completes(tmp_path: Path) -> None:
    job = Job(tmp_path, 12)
    end = job.run(processes=2, hooks={"seconds": 0.2, "kill": {"prompt 5": 1}})
    assert end.code == 1
    assert not end.was_forced
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
    assert not end.was_forced
    assert job.status() == 75
    assert any("no weights today" in error for error in job.summary()["errors"])
    assert job.run(processes=2).code == 0


@pytest.mark.parametrize("ranks", [(0,), (0, 1), (1,)])
@pytest.mark.parametrize("restarts", [0, 2])
def test_a_model_that_cannot_be_loaded_is_a_refusal(
    tmp_path: Path, ranks: tuple[int, ...], restarts: int
) -> None:
    """It is printed once, and `status` says the same, so that no scheduler tries for ever."""
    job = Job(tmp_path, 12)
    hooks = {"seconds": 1.0, "model_refused_on": ranks}
    processes = 1 if ranks == (0,) else 2
    end = job.run(processes=processes, restarts=restarts, hooks=hooks)
    assert end.code == (2 if processes == 1 and not restarts else 1)
    ours = [line for line in end.err.splitlines() if line.startswith("runner: ")]
    assert sum("text_encoder/model.safetensors is cut" in line for line in ours) == 1, end.err
    assert "again to go on" not in "\n".join(ours) or ranks == (1,)
    assert job.status() == 2
    assert job.summary()["outcome"] == "interrupted"
    generations = {path.name[:6] for path in (job.output / ".runner" / "journal").glob("*")}
    assert len(generations) == 1
    assert job.run("--shard", "1/2", processes=2).code == 0
    assert job.run(processes=2).code == 0
    assert job.status() == 0


@pytest.mark.parametrize("what", ["manifest", "folder"])
def test_the_reason_of_a_refusal_is_printed_once(tmp_path: Path, what: str) -> None:
    """Though rank 0 is late: the launcher ends it when another rank exits."""
    job = Job(tmp_path, 12)
    words = "foo: unknown key" if what == "manifest" else "not written by the runner"
    if what == "manifest":
        job.manifest.write_text(job.manifest.read_text() + "foo: 1\n")
    else:
        job.output.mkdir()
        (job.output / "000003.png").write_bytes(b"mine")
        (job.output / ".runner").mkdir()
    end = job.run(processes=4, hooks={"rank_0_late_s": 2})
    assert end.code == 1
    assert end.err.count(words) == 1, end.err


@pytest.mark.slow
def test_a_refused_shard_answers_for_itself(tmp_path: Path) -> None:
    """Though its sibling works."""
    job = Job(tmp_path, 24)
    with running(job.start("--shard", "2/2", hooks={"seconds": 2.5})) as process:
        job.wait_for_images(1)
        assert job.run("--shard", "1/2", hooks={"model_refused_on": [0]}).code == 2
        assert job.status("--shard", "1/2") == 2
        assert job.status("--shard", "2/2") == 75
        assert job.status() == 75
        assert ended(process).code == 0
    assert job.status("--shard", "2/2") == 0
    assert job.status() == 2
    assert job.run().code == 0
    assert job.status() == 0


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
    job = Job(tmp_path, 400 if what == "stop file" else 12)  # which is stopped before its end
    hooks = {"seconds": 0.3, "raise": ["prompt 3"] if what == "failures" else []}
    if what == "refusal":
        job.output.mkdir()
        (job.output / "000003.png").write_bytes(b"mine")
        (job.output / ".runner").mkdir()
    with running(job.start(processes=2, restarts=2, hooks=hooks)) as process:
        if what == "stop file":
            job.wait_for_images(2)
            (job.output / ".runner" / "stop").touch()
        end = ended(process)
    assert end.code == 1
    assert end.err.count("000003.png in") == (what == "refusal")
    generations = {path.name[:6] for path in (job.output / ".runner" / "journal").glob("*")}
    assert len(generations) == (what != "refusal")
    if what != "refusal":
        assert job.status() == {"failures": 3, "stop file": 75}[what]


def test_ranks_ended_for_a_neighbour_are_not_to_blame(tmp_path: Path) -> None:
    """One dies by an image, another by the next; both times the neighbour is at image 1."""
    job = Job(tmp_path, 8)
    job.hold(0, 1, 2)
    neighbour = None
    with running(job.start(processes=2, restarts=3)) as process:
        for index in (0, 2):
            neighbour = job.wait_for_process_at(1, after=neighbour)
            victim = job.wait_for_process_at(index)
            assert victim != neighbour
            kill(victim)
            job.release(index)
        job.wait_for_process_at(1, after=neighbour)
        job.release(1)
        end = ended(process)
    assert end.code == 0, end.err
    assert job.failures() == []
    assert len(job.images()) == 8


@pytest.mark.parametrize("processes", [1, 2])
def test_kills_from_outside_mark_no_image(tmp_path: Path, processes: int) -> None:
    """Two of them, at the same image."""
    job = Job(tmp_path, 12)
    hooks = {"seconds": 0.1, "kill": {"prompt 4": 2}}
    end = job.run(processes=processes, restarts=3, hooks=hooks)
    assert end.code == 0, end.err
    assert job.failures() == []
    assert len(job.images()) == 12
    assert job.partial_files() == []
    assert not [*(job.output / ".runner").glob(".crash*")]


DIE = """
import os, signal, sys
from pathlib import Path
from runner.launch.crashes import Crashes
class Store:
    command = property(lambda self: self)
    def set(self, key, value):
        Path(sys.argv[1], key.replace("/", "-")).write_text(value)
with Crashes(Store(), int(sys.argv[2]), Path(sys.argv[1], "trace-" + sys.argv[2])) as crashes:
    with crashes.during([int(sys.argv[3])]):
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
"""


def test_what_a_process_dies_of_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fatal signal of its own, an exception and the kernel's need for memory are evidence."""
    store = LocalStore()
    assert deaths(store, 6, tmp_path) == {}
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(crashes, "COUNTERS", counters)
    counters.write_text("nr_free 1\noom_kill 4\n")
    for rank, name in enumerate(("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM")):
        words = [sys.executable, "-c", DIE, str(tmp_path), str(rank), str(rank), name]
        subprocess.run(words, env=ENVIRONMENT, check=False, stderr=subprocess.DEVNULL)
        note = json.loads((tmp_path / f"at-{rank}").read_text())
        store.set(f"at/{rank}", json.dumps({**note, "oom_kills": 4}))
    with pytest.raises(InterruptedRunError), Crashes(store, 4).during((8,)):
        raise InterruptedRunError
    with pytest.raises(ZeroDivisionError), Crashes(store, 5).during((5,)):
        1 / 0  # noqa: B018
    assert deaths(store, 6, tmp_path) == {1: 1, 2: 1, 5: 1}
    assert deaths(store, 6, tmp_path) == {1: 1, 2: 1, 5: 1}
    for rank in (0, 1):
        note = json.loads((tmp_path / f"at-{rank}").read_text())
        store.set(f"at/{rank}", json.dumps({**note, "images": [7], "oom_kills": 4}))
    counters.write_text("nr_free 1\noom_kill 5\n")
    assert deaths(store, 6, tmp_path) == {1: 1, 2: 1, 5: 1, 7: 1}  # once for both ranks


def test_what_becomes_of_images_that_a_process_died_with() -> None:
    assert split_batch((3, 4), {4: 1, 5: 1}) == [(3,), (4,)]
    assert split_batch((0, 1), {4: 1, 5: 1}) == [(0, 1)]
    assert quarantined({4: 1, 5: 2}) == [5]
    assert split_batch((4, 5), {4: 1, 5: 2}) == [(4,)]


@pytest.mark.parametrize("text", ["[", "7", '{"images": "x"}', '{"images": [{}]}'])
def test_notes_of_strangers_in_the_store(tmp_path: Path, text: str) -> None:
    store = LocalStore()
    store.set("ranks", "1")
    store.set("at/0", text)
    assert deaths(store, 1, tmp_path) == {}


@pytest.mark.parametrize("processes", [2, 3])
def test_a_stranger_at_the_counters_loses_no_image(tmp_path: Path, processes: int) -> None:
    """The store says that all batches are taken; no journal says that they are done."""
    job = Job(tmp_path, 18)
    hooks = {"seconds": 0.1, "bump": {"shard/0": 4, "shard/1": 7}}
    end = job.run(processes=processes, hooks=hooks)
    assert end.code == 0, end.err
    assert len(job.images()) == 18
    made = [line["done"] for line in job.journal() if "done" in line]
    assert sorted(made) == list(range(18))


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
    plan = subprocess.run(
        [sys.executable, "-m", "runner", "plan", str(path), "--output", str(output), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert seeds == [task["seed"] for task in json.loads(plan.stdout)["tasks"]]
