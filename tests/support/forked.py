"""Launches that start quickly: forked from a process that has imported torch.

The same code runs, torchrun's agent included; only the imports are saved. `Forked` forks the caller
itself. `Served` asks a server process to fork, since a caller with threads must not:

python tests/support/forked.py        reads requests from stdin, prints the pids of launches
"""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.jobs import ENVIRONMENT, kill, workers

__all__ = ["Forked", "Served"]


class _Process:
    """The part of subprocess.Popen that jobs use."""

    pid: int
    returncode: int | None = None

    def __init__(self) -> None:
        # Lives as long as this object: the caller must keep it while the launch runs.
        self._temporary = tempfile.TemporaryDirectory(prefix="launch-")
        self.folder = Path(self._temporary.name)

    def poll(self) -> int | None:
        raise NotImplementedError

    def wait(self, timeout: float = 60.0) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self._print_stacks()
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(0.02)
        return code

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        self.wait(timeout)
        return (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def _print_stacks(self) -> None:
        for process in workers(self.pid):
            kill(process, signal.SIGUSR2)
        time.sleep(1)
        print((self.folder / "err").read_text(), file=sys.stderr)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forked(_Process):
    """A launch forked from this process, which must hold no threads."""

    def __init__(
        self, words: Sequence[str], hooks: dict[str, Any], processes: int, restarts: int
    ) -> None:
        super().__init__()
        self.pid = _fork(list(words), hooks, processes, restarts, self.folder)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Served(_Process):
    """A launch forked from a server's process."""

    def __init__(
        self, words: Sequence[str], hooks: dict[str, Any], processes: int, restarts: int
    ) -> None:
        super().__init__()
        server = _server()
        assert server.stdin
        assert server.stdout
        request = [list(words), hooks, processes, restarts, str(self.folder)]
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def poll(self) -> int | None:
        code = self.folder / "code"
        if self.returncode is None and code.exists():
            self.returncode = int(code.read_text())
        return self.returncode


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def end() -> None:
        assert server.stdin
        assert server.stdout
        server.stdin.close()
        server.wait(30)
        server.stdout.close()

    atexit.register(end)
    return server


def serve() -> None:
    """Fork a launch for each request; when one ends, write its exit code into its folder."""
    folders: dict[int, Path] = {}
    while True:
        if select.select([sys.stdin], [], [], 0.02)[0]:
            line = os.read(0, 1 << 20)
            if not line:
                return
            *request, folder = json.loads(line)
            process = _fork(*request, Path(folder))
            folders[process] = Path(folder)
            print(process, flush=True)
        for process, folder in list(folders.items()):
            pid, status = os.waitpid(process, os.WNOHANG)
            if pid:
                del folders[process]
                (folder / "part").write_text(str(os.waitstatus_to_exitcode(status)))
                (folder / "part").rename(folder / "code")


def _fork(
    words: list[str], hooks: dict[str, Any], processes: int, restarts: int, folder: Path
) -> int:
    sys.stdout.flush()
    for name in ("out", "err"):
        (folder / name).touch()
    if not (process := os.fork()):
        _end_with(lambda: _launch(words, hooks, processes, restarts, folder))
    return process


def _launch(
    words: list[str], hooks: dict[str, Any], processes: int, restarts: int, folder: Path
) -> int:
    import torch.distributed.elastic.multiprocessing.api as api
    import torch.distributed.launcher.api as launcher

    from runner.cli import main
    from support import hooked

    os.setsid()
    for number, name in enumerate(("/dev/null", str(folder / "out"), str(folder / "err"))):
        os.dup2(os.open(name, os.O_RDWR | os.O_APPEND), number)
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
    api._wrap = _rank
    launcher.elastic_launch(config, main)(words)
    return 0


def _rank(local_rank: int, _: Any, arguments: Any, environments: Any, *others: Any) -> None:
    """Replaces torch's function for a forked rank, which waits for the agent at its end; a rank
    that torchrun starts does not."""
    from runner.cli import main

    os.environ.update(environments[local_rank])
    code = main(*arguments[local_rank])
    values = others[2]
    if not code:
        values[local_rank].put(0)
    os._exit(code)


def _end_with(call: Callable[[], int]) -> None:
    """End this process with the exit code that `call` returns, as the interpreter would."""
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


if __name__ == "__main__":
    import torch.distributed.launcher.api  # noqa: F401

    from support import hooked  # noqa: F401  (imports torch once, for all launches)

    serve()
