"""A manifest over the tiny model and runs of it in this process."""

import contextlib
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from runner.commands.plan import show
from runner.commands.status import status
from runner.errors import ExitCode
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import load
from runner.prepare.rank import Job
from runner.run import run
from support.launch import FAST

Write = Callable[..., Path]  # the fixture `manifest`
PROMPTS = ["a cat", "a red fox", "no", "the sun", "a dog"]
PHASES = {"kind": "device_map", "phases": True}


class Bench:
    """A manifest over the tiny model, changed key by key, and runs of it."""

    def __init__(self, write: Write, flux: Path, home: Path) -> None:
        self.write = write
        self.output = home / "out"
        self.values: dict[str, Any] = {
            "model": str(flux),
            "seed": 3,
            "parameters": dict(FAST),
            "prompts": list(PROMPTS),
        }

    def job(self, **options: Any) -> Job:
        return Job(load(self.write(**self.values)), self.output, **options)

    def run(self, **options: Any) -> ExitCode:
        return run(self.job(**options), World(), Stop(20))

    def status(
        self, limit: int | None = None, part: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        return status(load(self.write(**self.values)), self.output, limit, part)

    def plan(self) -> dict[str, Any]:
        with contextlib.redirect_stdout(StringIO()) as out:
            show(load(self.write(**self.values)), self.output, 1, as_json=True)
        return dict(json.loads(out.getvalue()))
