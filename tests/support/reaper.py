"""Processes that tests start end with the test run, also when it is killed.

Every such process inherits a token in its environment. A process of its own waits until pytest is
gone, however it ended, and then kills all processes that have the token.

python tests/support/reaper.py TOKEN        waits for the end of stdin
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress

import psutil

NAME = "RUNNER_TEST_RUN"  # the environment variable
_reaper: subprocess.Popen[bytes] | None = None  # kept: its stdin would close with the object


def pytest_configure() -> None:
    """Start the reaper. Its stdin ends when this process does: no other process has the pipe."""
    global _reaper
    os.environ.pop(NAME, None)  # in a run within a run, the outer reaper must not kill the inner
    token = uuid.uuid4().hex
    command = [sys.executable, __file__, token]
    _reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.environ[NAME] = token


def reap(token: str) -> None:
    """Kill until none is left: a process may start another while we look."""
    while found := list(having(token)):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def having(token: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(NAME) == token:
                yield process


if __name__ == "__main__":
    sys.stdin.read()
    reap(sys.argv[1])
