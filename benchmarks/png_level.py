"""Size and time of PNG files by `output: {png_level: …}`: `python png_level.py [--images 64]`.

The runner makes images of the demo model in its three sizes; each is then encoded at every level,
with its text, as the runner does it. Prints kB and the least CPU milliseconds an image of three
rounds. About a minute.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arguments
import numpy as np
from contest import MOST_IMAGES, ROOT, items, write_manifest
from PIL import Image

from runner import demo
from runner.folder.png import encode, read_text

LEVELS = (0, 1, 3, 6, 9)
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(1, MOST_IMAGES), default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        pictures = make(Path(name), options.images)
    print(f"{'level':>5} {'kB':>8} {'CPU ms':>8}")
    for level in LEVELS:
        costs = (measure(pictures, level) for _ in range(ROUNDS))
        size, seconds = min(costs)
        print(f"{level:>5} {size / 1e3:>8.2f} {seconds * 1e3:>8.2f}", flush=True)


def make(home: Path, count: int) -> list[tuple[np.ndarray, dict[str, str]]]:
    """Pixels (H, W, 3) and text of each image."""
    manifest, out = home / "job.yaml", home / "out"
    write_manifest(manifest, "demo", items(count, sorted(demo.SIZES), {}), batch_size=8)
    command = [sys.executable, "-m", "runner", str(manifest), "--output", str(out)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return [(np.asarray(Image.open(path)), read_text(path) or {}) for path in out.glob("*.png")]


def measure(pictures: list[tuple[np.ndarray, dict[str, str]]], level: int) -> tuple[float, float]:
    """Bytes and CPU seconds an image."""
    start = time.process_time()
    size = sum(len(encode(pixels, text, level)) for pixels, text in pictures)
    return size / len(pictures), (time.process_time() - start) / len(pictures)


if __name__ == "__main__":
    main()
