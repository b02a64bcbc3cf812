"""Two hosts: a run over both, a cable pulled, a host killed."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, elastic, missing, static
from support.jobs import Job, ended, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"two hosts need {missing()}"),
]
IMAGES = 24
SLOW = {"seconds": 0.7}
WITHIN_S = 180


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts() as two:
        yield two


def launch(job: Job, hosts: Hosts, launcher: Callable[[int], list[str]]) -> None:
    for node, host in enumerate(hosts.hosts):
        host.launch(job.command(launcher=launcher(node), hooks=SLOW))


def nothing_twice(job: Job) -> None:
    assert job.partial_files() == []
    made = Counter(line["done"] for line in job.journal() if "done" in line)
    assert all(count == 1 for count in made.values())


@pytest.mark.parametrize("launcher", [static, elastic])
def test_a_run_over_two_hosts(
    tmp_path: Path, hosts: Hosts, launcher: Callable[[int], list[str]]
) -> None:
    job = Job(tmp_path, 10)
    launch(job, hosts, launcher)
    for host in hosts.hosts:
        assert host.process is not None
        end = ended(host.process)
        assert end.code == 0, end.err
    assert job.status() == 0
    assert job.summary()["launch"]["world_size"] == 2
    nothing_twice(job)


@pytest.mark.parametrize("fault", ["cut", "kill the second", "kill the first"])
@pytest.mark.parametrize("launcher", [static, elastic])
def test_a_fault_costs_no_image_and_less_than_three_minutes(
    tmp_path: Path, hosts: Hosts, launcher: Callable[[int], list[str]], fault: str
) -> None:
    job = Job(tmp_path, IMAGES)
    first, second = hosts.hosts
    launch(job, hosts, launcher)
    job.wait_for_images(6)
    began = time.monotonic()
    hosts.cut()
    if fault != "cut":
        (first if fault == "kill the first" else second).end()
    before = job.pixels()
    survivor = second if fault == "kill the first" else first
    if fault == "kill the first":
        wait_for(lambda: is_idle(job), 60)  # its own share, without the store
    else:
        wait_for(lambda: len(job.images()) == IMAGES, WITHIN_S)
        wait_for(lambda: job.summary()["outcome"] == "complete", WITHIN_S)
    for host in hosts.hosts:
        host.end()  # a launcher waits at its exit barrier for a host that is gone
    again = survivor.launch(job.command())
    end = ended(again, WITHIN_S)
    assert end.code == 0, end.err
    seconds = time.monotonic() - began
    print(f"{launcher.__name__}, {fault}: complete {seconds:.0f} s after the fault")
    assert seconds < WITHIN_S
    assert before.items() <= job.pixels().items()
    assert len(job.images()) == IMAGES
    assert job.status() == 0
    nothing_twice(job)


def is_idle(job: Job) -> bool:
    """Whether no image came for some seconds."""
    before = job.images()
    time.sleep(5)
    return job.images() == before
