"""Make the images of a manifest.

python -m runner manifests/job.yaml
torchrun --standalone --nproc-per-node N -m runner manifests/job.yaml
accelerate launch --num_processes N -m runner manifests/job.yaml
"""

import contextlib
import io
import os
import sys
from typing import Any

from runner.cli import main
from runner.errors import ExitCode


class _Output(io.FileIO):
    """Goes on when the reader is gone, as in `runner job.yaml 2>&1 | head -1`: the work counts."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def entry() -> None:
    sys.stdout, sys.stderr = _stream(1), _stream(2)
    code = main()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"runner: standard output: {error.strerror}", file=sys.stderr)
        code = code or int(ExitCode.ERROR)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # Every file is closed. To take the interpreter apart costs seconds once torch is in it, and
    # whoever asked us to stop counts them.
    os._exit(code)


def _stream(number: int) -> io.TextIOWrapper:
    try:
        os.fstat(number)
    except OSError:  # closed, as by `2>&-`
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    buffered = io.BufferedWriter(_Output(number, "w", closefd=False))
    is_prompt = number == 2 or os.isatty(number)
    return io.TextIOWrapper(
        buffered, encoding="utf-8", errors="backslashreplace", line_buffering=is_prompt
    )


if __name__ == "__main__":
    entry()
