"""Launches on pretended GPUs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.launches import Launcher
from support.on_gpus import OnGpus, Start


@pytest.fixture
def on_gpus(ranks: Launcher, tmp_path: Path) -> Start:
    """`on_gpus(4, manifest, processes=2, mb=400)`: ranks on a node of 4 devices."""

    def start(
        gpus: int,
        manifest: Path,
        *arguments: str,
        processes: int = 1,
        mb: float = 10_000,
        environment: Mapping[str, str] | None = None,
    ) -> OnGpus:
        reports = tmp_path / "gpus"
        reports.mkdir(exist_ok=True)
        given = {
            "FAKE_GPUS": str(gpus),
            "FAKE_GPU_MB": str(mb),
            "FAKE_GPU_REPORT": str(reports / "{rank}.json"),
        }
        ended = ranks(
            processes,
            manifest,
            *arguments,
            function="support.fake_accelerator:main",
            environment={**given, **(environment or {})},
        )
        found: list[Any] = []
        for rank in range(processes):
            path = reports / f"{rank}.json"
            found.append(json.loads(path.read_text()) if path.exists() else {})
            path.unlink(missing_ok=True)
        return OnGpus(
            ended,
            [{int(index): size for index, size in one.get("peak", {}).items()} for one in found],
            [one.get("touched", []) for one in found],
            [one.get("tf32", True) for one in found],
        )

    return start
