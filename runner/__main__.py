"""Make the images of a manifest.

python -m runner manifests/job.yaml
torchrun --standalone --nproc-per-node N -m runner manifests/job.yaml
accelerate launch --num_processes N -m runner manifests/job.yaml
"""

import contextlib
import io
import os
import signal
import sys
from typing import Any

from runner.errors import ExitCode


class _Output(io.FileIO):
    """Discards output once the reader is gone: in `runner job.yaml 2>&1 | head -1` the work must
    go on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def entry() -> None:
    """Run the command line and exit with its code."""
    # Until `run` handles signals, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from runner.cli import main

    sys.stdout, sys.stderr = _stream(1), _stream(2)
    code = main()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"runner: standard output: {error.strerror}", file=sys.stderr)
        code = code or int(ExitCode.ERROR)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # All files are closed. An orderly exit of the interpreter takes seconds once torch is imported,
    # and a stop should be quick.
    os._exit(code)


def _stream(number: int) -> io.TextIOWrapper:
    """Standard output (1) or error (2), also when it was closed, as by `2>&-`."""
    try:
        os.fstat(number)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    buffered = io.BufferedWriter(_Output(number, "w", closefd=False))
    is_prompt = number == 2 or os.isatty(number)
    return io.TextIOWrapper(
        buffered, encoding="utf-8", errors="backslashreplace", line_buffering=is_prompt
    )


if __name__ == "__main__":
    entry()
