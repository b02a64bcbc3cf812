"""A rank whose device fails stops; the others make its share, and the end says so."""

from pathlib import Path

import pytest
from support.jobs import Job, wait_for

from runner.launch.broken import is_first_whole, note_broken
from runner.launch.store import LocalStore


def _check(code: int, err: str, job: Job, rank: int) -> None:
    assert code == 0, err
    assert "complete: 8 of 8 images" in err
    last = [line for line in err.splitlines() if line.startswith("runner:")][-1]
    assert last.startswith(f"runner: rank {rank} on ")
    assert "its device fails: CUDA error: an illegal memory access was encountered; " in last
    assert job.status() == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_make_the_share_of_a_device_that_fails_at_once(
    tmp_path: Path, rank: int
) -> None:
    job = Job(tmp_path, 8)
    end = job.run(processes=2, hooks={"device_fails": {str(rank): "load"}})
    _check(end.code, end.err, job, rank)


def test_the_others_make_what_a_broken_device_had_begun(tmp_path: Path) -> None:
    job = Job(tmp_path, 8)
    job.hold(0)  # so that rank 0 does not help before rank 1 has begun
    launch = job.start(processes=2, hooks={"device_fails": {"1": "prompt 1"}})
    wait_for(lambda: (tmp_path / "begun-1").exists(), 120)
    job.release(0)
    _, err = launch.communicate(120)
    _check(launch.returncode, err, job, 1)


def test_a_single_device_that_fails_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, 4)
    end = job.run(hooks={"device_fails": {"0": "prompt 2"}})
    assert end.code == 1
    assert job.status() == 75
    assert len(job.images()) == 2


def test_where_the_first_replicas_are_broken_the_next_makes_what_they_had_begun() -> None:
    store = LocalStore()
    assert [is_first_whole(store, replica) for replica in range(3)] == [True, False, False]
    note_broken(store, 0, "rank 0")
    assert is_first_whole(store, 1)
    assert not is_first_whole(store, 2)
