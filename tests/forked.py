"""Launches that start at once: forked from a process that has torch imported already.

The same code runs, torchrun's agent included; only the imports are saved.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import hooked
import torch.distributed.launcher.api as launcher
from jobs import kill, workers

from runner.cli import main

__all__ = ["Forked"]


class Forked:
    """What of subprocess.Popen the jobs need."""

    def __init__(
        self, words: Sequence[str], hooks: dict[str, Any], processes: int, restarts: int
    ) -> None:
        self.returncode: int | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _end_with(lambda: self._child(list(words), hooks, processes, restarts))

    def _child(self, words: list[str], hooks: dict[str, Any], processes: int, restarts: int) -> int:
        os.setsid()
        os.dup2(self._errors.fileno(), 1)
        os.dup2(self._errors.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        hooked.hook(hooks)
        if processes == 1 and not restarts:
            return main(words)
        config = launcher.LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=restarts,
            start_method="fork",
        )
        launcher.elastic_launch(config, _worker)(words)
        return 0

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self._tell_stacks()
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(0.02)
        self._errors.seek(0)
        return "", self._errors.read()

    def _tell_stacks(self) -> None:
        for process in workers(self.pid):
            kill(process, signal.SIGUSR2)
        time.sleep(1)
        self._errors.seek(0)
        print(self._errors.read(), file=sys.stderr)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _worker(words: list[str]) -> None:
    """Returns where all is well: the agent waits for the value."""
    if code := main(words):
        os._exit(code)


def _end_with(call: Callable[[], int]) -> None:
    """End this process with the answer of `call`, as the interpreter would."""
    code = 1
    try:
        code = call()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
