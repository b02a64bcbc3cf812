"""What it costs to know a model by its weights: `python identity.py --gib 24`.

Writes random weights as safetensors of 2 GiB, then computes the model's identity with the files out
of the page cache, and again with them in it. The ratio is to reading the headers alone.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arguments
import numpy
from safetensors.numpy import save_file

from runner.model import files as model
from runner.model.safetensors_header import spans
from runner.model.spec import ModelSpec

TENSOR = 32 << 20  # bytes, as a large linear layer has them
TENSORS = 64  # of a file


def write(folder: Path, gib: int) -> list[Path]:
    (folder / "unet").mkdir()
    (folder / "model_index.json").write_text('{"_class_name": "X", "unet": ["diffusers", "Y"]}')
    paths = [folder / "unet" / f"m{number}.safetensors" for number in range((gib + 1) // 2)]
    generator = numpy.random.default_rng(0)
    for path in paths:
        values = {
            f"t{number}": generator.integers(0, 256, TENSOR, "uint8") for number in range(TENSORS)
        }
        save_file(values, path)
    return paths


def forget(paths: list[Path]) -> None:
    """Put the files out of the page cache."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def seconds(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=arguments.whole(1, 1000), default=8, help="of weights")
    gib = parser.parse_args().gib
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write(folder, gib)
        spec = ModelSpec(id=str(folder))
        forget(paths)
        headers = seconds(lambda: [spans(path) for path in paths])
        forget(paths)
        cold = seconds(lambda: model.identity(spec))
        warm = seconds(lambda: model.identity(spec))
    print(
        f"{gib} GiB, {len(paths) * TENSORS} tensors: headers alone {headers:.3f} s, identity "
        f"{cold:.3f} s ({cold / headers:.1f} ×), from the page cache {warm:.3f} s"
    )


if __name__ == "__main__":
    main()
