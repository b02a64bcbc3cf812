"""Which devices each rank uses, on pretended GPUs: the images are those of a CPU."""

from pathlib import Path
from typing import Any

import pytest
from support.launch import FAST, pixels
from support.launches import Launcher
from support.on_gpus import Start

PROMPTS = ["a cat", "a red fox", "no", "the sun"]


@pytest.fixture
def job(manifest: Any, flux: Path) -> Any:
    def write(output: Path, **values: Any) -> Path:
        return manifest(
            model=str(flux), seed=3, parameters=dict(FAST), prompts=PROMPTS,
            output=str(output), **values,
        )  # fmt: skip

    return write


@pytest.fixture
def expected(ranks: Launcher, job: Any, tmp_path: Path) -> Any:
    assert ranks(1, job(tmp_path / "cpu")).codes == [0]
    return pixels(tmp_path / "cpu")


def test_data_parallel_takes_one_device_a_rank(
    on_gpus: Start, job: Any, expected: Any, tmp_path: Path
) -> None:
    for gpus, processes in ((1, 1), (2, 2), (4, 2)):
        out = tmp_path / f"{gpus}x{processes}"
        found = on_gpus(gpus, job(out), processes=processes)
        assert found.ended.codes == [0] * processes, found.ended.words
        assert found.touched == [[rank] for rank in range(processes)]
        assert "replicas on pretended GPU" in found.ended.words.replace("1 replica ", "1 replicas ")
        assert "dtype: float32 takes twice the memory" in found.ended.words
        remark = "2 devices of 4 are used; to use all, start it with: torchrun --nproc-per-node 4"
        assert (remark in found.ended.words) == (gpus > processes)
        assert found.tf32 == [False] * processes  # float32 means float32
        assert pixels(out) == expected


@pytest.mark.parametrize(
    ("strategy", "variable"),
    [
        ("data_parallel", {"SLURM_GPUS_PER_TASK": "1"}),
        ("device_map", {"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=1"}),
        ("auto", {"SLURM_GPUS_ON_TASK": "1"}),
    ],
)
def test_a_task_that_sees_its_own_device_alone_takes_it(
    on_gpus: Start,
    job: Any,
    expected: Any,
    tmp_path: Path,
    strategy: str,
    variable: dict[str, str],
) -> None:
    found = on_gpus(1, job(tmp_path / "out", strategy=strategy), processes=2, environment=variable)
    assert found.ended.codes == [0, 0], found.ended.words
    assert found.touched == [[0], [0]]
    assert pixels(tmp_path / "out") == expected


def test_more_ranks_than_devices_are_refused(on_gpus: Start, job: Any, tmp_path: Path) -> None:
    found = on_gpus(1, job(tmp_path / "out"), processes=2)
    assert 2 in found.ended.codes
    assert "use --nproc-per-node 1, or let each process see all GPUs" in found.ended.words


def test_each_device_map_replica_keeps_to_its_own_devices(
    on_gpus: Start, job: Any, expected: Any, tmp_path: Path
) -> None:
    """Also where it is `balanced`, and where rank 0 asks for the memory of named ones."""
    for number, strategy in enumerate(
        ("device_map", {"kind": "device_map", "max_memory": {"0": "1GiB", "1": "1GiB"}})
    ):
        out = tmp_path / str(number)
        found = on_gpus(4, job(out, strategy=strategy), processes=2)
        assert found.ended.codes == [0, 0], found.ended.words
        assert set(found.touched[0]) <= {0, 1}
        assert set(found.touched[1]) <= {2, 3}
        assert pixels(out) == expected


def test_auto_asks_no_device_of_another_rank(
    on_gpus: Start, job: Any, expected: Any, tmp_path: Path
) -> None:
    """Asking a device for its free memory makes a context on it, half a GB of each."""
    found = on_gpus(4, job(tmp_path / "out", strategy="auto"), processes=4)
    assert found.ended.codes == [0] * 4, found.ended.words
    assert found.touched == [[0], [1], [2], [3]]
    assert pixels(tmp_path / "out") == expected
