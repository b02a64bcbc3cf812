"""Make the images of a manifest.

python -m runner manifests/job.yaml
torchrun --standalone --nproc-per-node N -m runner manifests/job.yaml
accelerate launch --num_processes N -m runner manifests/job.yaml
"""

import sys

from runner.cli import main


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
