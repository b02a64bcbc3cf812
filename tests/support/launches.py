"""Launches of several ranks, forked by a process that has all imports (zygote.py)."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import PYTHONPATH, SUPPORT


@dataclass(frozen=True, slots=True)
class Ended:
    """A launch that ended: per rank its exit code and its words; whether SIGKILL was needed."""

    codes: list[int]
    was_forced: bool
    output: list[str]
    seconds: float

    @property
    def words(self) -> str:
        return "\n".join(self.output)


class Launcher:
    """Starts the zygote; a call forks ranks from it. `close` ends it."""

    def __init__(self, *setups: str) -> None:
        """`setups` name functions that the zygote calls once, before it forks."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_NTASKS"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "zygote.py"), *setups],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def __call__(
        self,
        world_size: int,
        *arguments: object,
        function: str = "runner.cli:main",
        patches: Sequence[str] = (),
        folder: Path | None = None,
        timeout_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run `function(arguments)` on every rank, after the functions named in `patches`.
        `environment` is added to that of a rank; {rank} in a value is its number."""
        request = {
            "world_size": world_size,
            "arguments": [str(argument) for argument in arguments],
            "function": function,
            "patches": list(patches),
            "folder": str(folder or tempfile.mkdtemp(prefix="ranks")),
            "timeout_s": timeout_s,
            "environment": dict(environment or {}),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote ended"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
