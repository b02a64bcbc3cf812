"""Memory of a process over 1,000 images: it must not grow.

    python benchmarks/steady_memory.py [--images 1000] [--json FILE]

One process with one thread makes images of the demo model in its three sizes, every prompt another
one, two denoising steps each to save time. Prints the resident memory once 100 images are rendered,
at every further hundred, and the last over the first. About three minutes.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arguments

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

EVERY = 100
COLOURS = ("red", "green", "blue", "yellow")
THINGS = ("fox", "cat", "dog", "house", "tree", "boat", "moon", "sun")
PLACES = ("in the snow", "on the sea", "under the sun", "at night")
THINGS_OF_A_COLOUR = [f"a {colour} {thing}" for colour in COLOURS for thing in THINGS]
PAIRS = itertools.permutations(THINGS_OF_A_COLOUR, 2)
TEXTS = [f"{one} and {two} {place}" for (one, two), place in itertools.product(PAIRS, PLACES)]
SIZES = ((128, 128), (96, 160), (160, 96))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(2 * EVERY, len(TEXTS)), default=1000)
    parser.add_argument("--json", type=arguments.new_file)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.exit(child(options.child))
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(Path(folder), options.images)
    for images, size in samples:
        print(f"{images:>6} images {size:>8.1f} MB", flush=True)
    ratio = samples[-1][1] / samples[0][1]
    print(f"after {samples[-1][0]} images {ratio:.3f} of after {samples[0][0]}")
    arguments.write_json(options.json, {"mb": samples, "ratio": ratio})


def measure(folder: Path, images: int) -> list[tuple[int, float]]:
    """(images, MB) at every hundred."""
    manifest = folder / "job.yaml"
    prompts = [
        {"prompt": text, "parameters": {"height": height, "width": width}}
        for text, (height, width) in zip(TEXTS[:images], itertools.cycle(SIZES), strict=False)
    ]
    values = {"model": "demo", "seed": 1, "parameters": {"num_inference_steps": 2}}
    manifest.write_text(json.dumps({**values, "output": str(folder / "out"), "prompts": prompts}))
    output = subprocess.run(
        [sys.executable, __file__, "--child", str(manifest)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return [(int(images), float(size)) for images, size in map(bytes.split, output.splitlines())]


def child(manifest: Path) -> int:
    """The runner, telling the memory of its process at every hundredth image."""
    from runner.cli import main as run
    from runner.render.pipeline import Pipeline

    render, rendered = Pipeline.render, itertools.count(1)

    def counting(self: Pipeline, tasks: Any, degraded: Any = ()) -> Iterator[Any]:
        yield from render(self, tasks, degraded)
        for _ in tasks:
            number = next(rendered)
            if number % EVERY == 0:
                print(number, resident_mb(), flush=True)

    Pipeline.render = counting  # type: ignore[method-assign]
    return run(["run", str(manifest)])


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
