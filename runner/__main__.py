"""Make the images of a manifest.

python -m runner manifests/job.yaml
torchrun --standalone --nproc-per-node N -m runner manifests/job.yaml
accelerate launch --num_processes N -m runner manifests/job.yaml
"""

import contextlib
import os
import sys

from runner.cli import main


def entry() -> None:
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # `runner plan job.yaml | head`
            stream.flush()
    # Every file is closed. To take the interpreter apart costs seconds once torch is in it, and
    # whoever asked us to stop counts them.
    os._exit(code)


if __name__ == "__main__":
    entry()
