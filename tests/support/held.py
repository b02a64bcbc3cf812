"""The runner, whose ranks stand still in an image once the output folder has COUNT images.

torchrun … tests/support/held.py COUNT OUTPUT RUNNER_ARGUMENTS …
"""

import sys
import time
from pathlib import Path
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler

from runner.cli import main


def hold(count: int, output: Path) -> None:
    real = FlowMatchEulerDiscreteScheduler.step

    def step(*arguments: Any, **named: Any) -> Any:
        while len(list(output.glob("*.png"))) >= count:
            time.sleep(0.05)
        return real(*arguments, **named)

    FlowMatchEulerDiscreteScheduler.step = step


if __name__ == "__main__":
    hold(int(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
