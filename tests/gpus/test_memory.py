"""Memory of pretended GPUs, counted byte by byte: what runs out, what helps, and what plan says."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.launch import FAST, pixels
from support.on_gpus import Start

from runner.launch.devices import Machine
from runner.model.configs import ModelConfigs
from runner.model.spec import ModelSpec
from runner.model.weights import component_bytes
from runner.strategies.estimate.fit import JobSize, in_phases
from runner.units import GIB

MIB = 2**20


def test_offload_makes_the_same_image_where_memory_ran_out(
    on_gpus: Start, manifest: Any, flux: Path, tmp_path: Path
) -> None:
    def job(output: str, **values: Any) -> Path:
        return manifest(
            model=str(flux), seed=3, parameters=dict(FAST), prompts=["a cat"],
            output=str(tmp_path / output), **values,
        )  # fmt: skip

    whole = on_gpus(1, job("whole"))
    assert whole.ended.codes == [0], whole.ended.words
    less = whole.peaks[0][0] * 0.97 / MIB
    found = on_gpus(1, job("fail"), mb=less)
    assert found.ended.codes == [3], found.ended.words
    found = on_gpus(1, job("offload", on_out_of_memory="offload"), mb=less)
    assert found.ended.codes == [0], found.ended.words
    assert found.peaks[0][0] <= less * MIB
    (record,) = map(json.loads, (tmp_path / "offload" / "metadata.jsonl").open())
    assert record["degraded"] == ["model offload"]
    assert pixels(tmp_path / "offload") == pixels(tmp_path / "whole")


def test_phases_need_what_plan_says(
    on_gpus: Start, manifest: Any, flux: Path, tmp_path: Path
) -> None:
    """Of weights and activations; the context of a device is not pretended."""
    path = manifest(
        model=str(flux), seed=3, parameters=dict(FAST), prompts=["a cat"],
        output=str(tmp_path / "out"), strategy={"kind": "device_map", "phases": True},
    )  # fmt: skip
    found = on_gpus(1, path)
    assert found.ended.codes == [0], found.ended.words
    image = SimpleNamespace(prompt_index=0, prompt="a cat", parameters=FAST)
    sizes = component_bytes(ModelSpec(id=str(flux)), "float32")
    job = JobSize.of(ModelConfigs.read(flux), "float32", sizes, 1, [image])
    planned = in_phases(job, Machine(1, 80 * GIB, "pcie"))
    assert found.peaks[0][0] == pytest.approx(planned.weights + planned.activations, rel=0.1)
