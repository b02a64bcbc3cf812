"""Fixtures for whole runs of one process with the tiny model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bench import Bench, Write

from runner.render.pipeline import Pipeline


@pytest.fixture
def bench(manifest: Write, flux: Path, tmp_path: Path) -> Bench:
    return Bench(manifest, flux, tmp_path)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """For the given prompts, make the pipeline raise the exception or return the value."""
    real = Pipeline.images

    def fail(faults: dict[str, Any]) -> None:
        def images(self: Pipeline, tasks: Any) -> Any:
            made = real(self, tasks)
            for place, task in enumerate(tasks):
                fault = faults.get(task.prompt)
                if isinstance(fault, BaseException):
                    raise fault
                if fault is not None:
                    made[place] = fault
            return made

        monkeypatch.setattr(Pipeline, "images", images)

    return fail


@pytest.fixture
def at_image(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Call an action just before the job renders the image with that number."""
    real = Pipeline.images

    def do(number: int, action: Callable[[], None]) -> None:
        def images(self: Pipeline, tasks: Any) -> Any:
            if tasks[0].index == number:
                action()
            return real(self, tasks)

        monkeypatch.setattr(Pipeline, "images", images)

    return do
