"""Every strategy that this machine's GPUs allow, against one GPU: `python benchmarks/gpu_check.py`.

For each strategy one launch of the runner, on a FLUX pipeline with random weights, made on the
spot: nothing is downloaded. Prints the largest difference of pixels from one GPU, peak memory a
GPU and seconds an image. Ends within 8 minutes; what finds no time left is named as not run.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arguments
import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

LIMIT_S = 8 * 60
IMAGES = 4
PROMPTS = ["a red fox", "the moon on the sea", "a dog under the sun", "a green house"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=arguments.whole(16, 8192), default=512, help="pixels a side")
    options = parser.parse_args()
    if not torch.accelerator.is_available():
        print("no accelerator here")
        return 2
    until = time.monotonic() + LIMIT_S
    count = torch.accelerator.device_count()
    worst = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        expected = None
        print(f"{count} devices, FLUX with random weights, {options.size} px, float32")
        print(f"{'strategy':<62} {'ranks':>5} {'differs':>8} {'peak GiB':>8} {'s/image':>8}")
        for number, (ranks, strategy) in enumerate(strategies(count)):
            left = until - time.monotonic()
            if left < 30:
                print(f"{strategy:<62} {ranks:>5} not run: no time left")
                continue
            out = folder / str(number)
            memory = run(folder, model, out, ranks, strategy, options.size, left)
            if memory is None:
                worst = 255
                print(f"{strategy:<62} {ranks:>5} FAILED")
                continue
            pixels = [np.asarray(Image.open(path)) for path in sorted(out.glob("*.png"))]
            expected = expected or pixels
            differs = max(
                int(np.abs(one.astype(int) - other).max())
                for one, other in zip(expected, pixels, strict=True)
            )
            worst = max(worst, differs)
            print(
                f"{strategy:<62} {ranks:>5} {differs:>4}/255 {memory / 2**30:>8.2f} "
                f"{seconds(out):>8.2f}"
            )
    return 0 if worst <= 2 else 1


def strategies(count: int) -> list[tuple[int, str]]:
    """(processes, strategy), one GPU first."""
    found = [(1, "data_parallel"), (1, "{kind: device_map, phases: true}"), (1, "auto")]
    found.append((1, '{kind: device_map, max_memory: {"0": 1GiB, cpu: 8GiB}}'))
    if count > 1:
        found += [(count, "data_parallel"), (1, "{kind: device_map}")]
    for degree in (2, 4):
        if count % degree:
            continue
        found += [
            (count, f"{{kind: context_parallel, ulysses_degree: {degree}}}"),
            (
                count,
                f"{{kind: context_parallel, ulysses_degree: {degree}, ulysses_anything: true}}",
            ),
            (count, f"{{kind: tensor_parallel, degree: {degree}}}"),
        ]
        found += [(count, strategy) for strategy in engines(degree)]
    return found


def engines(degree: int) -> list[str]:
    """Those whose packages are installed. float32 leaves them Ulysses, and PipeFusion whose steps
    are all warm-up steps."""
    found = []
    if importlib.util.find_spec("para_attn"):
        found.append(f"{{kind: para_attn, ulysses_degree: {degree}}}")
    if importlib.util.find_spec("xfuser"):
        found.append(f"{{kind: xdit, ulysses_degree: {degree}}}")
        found.append(f"{{kind: xdit, pipefusion_degree: {degree}, warmup_steps: 8}}")
    return found


def make_model(folder: Path) -> Path:
    """About 1.5 GB: large enough to see the memory that a strategy saves."""
    from support import tiny

    return tiny.flux(folder, heads=16, width=64, layers=8)


def run(
    folder: Path, model: Path, out: Path, ranks: int, strategy: str, size: int, timeout_s: float
) -> int | None:
    """Peak bytes of the fullest device, or None where the launch failed."""
    manifest = folder / "job.yaml"
    parameters = {
        "height": size,
        "width": size,
        "num_inference_steps": 8,
        "max_sequence_length": 64,
    }
    manifest.write_text(
        f"model: {model}\nseed: 1\nstrategy: {strategy}\noutput: {out}\n"
        f"parameters: {json.dumps(parameters)}\nprompts: {json.dumps(PROMPTS[:IMAGES])}\n"
    )
    launcher = [sys.executable]
    if ranks > 1:
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        launcher += torchrun
    program = [str(Path(__file__).with_name("peak_memory.py")), str(manifest)]
    try:
        done = subprocess.run(
            [*launcher, *program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    peaks = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak ")]
    return max(peaks)


def seconds(out: Path) -> float:
    """The middle of what the images' records say: the first has the warm-up."""
    lines = (out / "metadata.jsonl").read_text().splitlines()
    return float(np.median([json.loads(line)["seconds"] for line in lines]))


if __name__ == "__main__":
    sys.exit(main())
