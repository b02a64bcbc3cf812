"""Run the runner in new processes, and read what is in the output folder afterwards."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from runner.manifest.load import Loaded
from runner.plan import Plan

FAST = {"height": 32, "width": 32, "num_inference_steps": 2, "max_sequence_length": 16}


def plan_of(loaded: Loaded) -> Plan:
    return Plan(loaded.manifest, loaded.prompts, loaded.root)


def launch(
    arguments: Sequence[Any],
    *,
    nproc: int = 0,
    launcher: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 240,
    program: Sequence[str] = ("-m", "runner"),
) -> subprocess.CompletedProcess[str]:
    """Run the runner to its end: in plain Python, or under torchrun with `nproc` ranks."""
    command = command_line(arguments, nproc=nproc, launcher=launcher, program=program)
    return subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def command_line(
    arguments: Sequence[Any],
    *,
    nproc: int = 0,
    launcher: Sequence[str] = (),
    program: Sequence[str] = ("-m", "runner"),
) -> list[str]:
    if nproc and not launcher:
        run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}")
        launcher = (sys.executable, *run)
    return [*(launcher or (sys.executable,)), *program, *map(str, arguments)]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def pixels(folder: Path) -> dict[str, bytes]:
    """File name → decoded pixels, for every image in a folder."""
    return {
        path.name: np.asarray(Image.open(path)).tobytes() for path in sorted(folder.glob("*.png"))
    }


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """File name → modification time and inode. Equal means: not written again."""
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("*.png")
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "summary.json").read_text())
    assert isinstance(values, dict)
    return values
