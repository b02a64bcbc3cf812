"""What makes images fastest on this machine's GPUs: `python benchmarks/gpu_bench.py`.

A FLUX pipeline with random weights, made on the spot, in bfloat16: the runner, the scripts and the
bare loop of `throughput.py`, the bare loop with each attention backend that is installed, with
compiled blocks (a second time from its cache, and so the runner with `compile: true`) and with the
first-block cache. Ends within 8 minutes; what finds no time left is named as not run. `--dry` makes
a few tiny images on the CPU.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import arguments
import torch
from contest import (
    BASELINES,
    HEAD,
    MOST_IMAGES,
    ROOT,
    Measured,
    ProgramError,
    items,
    measure,
    row,
    write_manifest,
)

sys.path.insert(0, str(ROOT / "tests"))

LIMIT_S = 8 * 60 - 20
LEAST_S = 40  # to start another program
OURS = ("native", "_native_cudnn", "_native_flash", "_native_efficient")  # torch's own backends
PACKAGES = {"flash": "flash_attn", "_flash_3": "flash_attn_interface", "sage": "sageattention"}
PACKAGES |= {"xformers": "xformers"}

Program = list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(1, MOST_IMAGES), default=48)
    parser.add_argument("--dry", action="store_true", help="tiny images on the CPU")
    default = ROOT / "outputs" / "gpu_bench.json"
    parser.add_argument("--json", type=arguments.new_file, default=default)
    options = parser.parse_args()
    if not options.dry and not torch.accelerator.is_available():
        print("gpu_bench.py needs a GPU, and there is none; --dry makes tiny images on the CPU")
        return 2
    until = time.monotonic() + LIMIT_S
    with tempfile.TemporaryDirectory() as name:
        # Compiled code is kept here, so that the second of two runs shows the cache at work.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{name}/compiled"
        found = contend(Path(name), options.images, until, dry=options.dry)
    arguments.write_json(options.json, found)
    return 0


def contend(home: Path, count: int, until: float, *, dry: bool) -> dict[str, object]:
    """Print the table as it grows; its numbers by name."""
    from support import tiny

    if dry:
        model, sizes, count, dtype = tiny.flux(home / "model"), [(32, 32)], 4, "float32"
        parameters = {"num_inference_steps": 2, "max_sequence_length": 16}
    else:
        model = tiny.flux(home / "model", heads=16, width=64, layers=8)
        sizes, dtype = [(512, 512), (768, 512), (1024, 1024)], "bfloat16"
        parameters = {"num_inference_steps": 16, "max_sequence_length": 64}
    job = items(count, sizes, parameters)
    (home / "job.json").write_text(json.dumps(job))
    write_manifest(home / "job.yaml", str(model), job, dtype=dtype)
    processes = max(1, torch.accelerator.device_count())
    print(f"{processes} processes, {count} images of {len(sizes)} sizes, {dtype}\n{HEAD}")
    measured: dict[str, Measured] = {}
    for number, (name, program) in enumerate(programs(home, model, dtype, dry=dry).items()):
        left = until - time.monotonic()
        if left < LEAST_S:
            print(f"{name:<34} not run: no time left")
            continue
        try:
            made = measure(program, count, home / f"reports-{number}", processes, left)
        except ProgramError as error:
            print(f"{name:<34} failed: {str(error).strip().splitlines()[-1][:120]}", flush=True)
            continue
        measured[name] = made
        floor = min(measured.values(), key=lambda run: run.calls_s)
        print(row(name, made, floor), flush=True)
    return {name: asdict(run) for name, run in measured.items()}


def programs(home: Path, model: Path, dtype: str, *, dry: bool) -> dict[str, Program]:
    """The contenders, the most telling ones first."""

    def script(kind: str, *more: str) -> Program:
        given = [str(model), str(home / "job.json"), str(home / kind), "--dtype", dtype]
        return [BASELINES, kind, *given, *more]

    def runner(size: str, name: str = "plain", **values: str) -> Program:
        sets = {"batch_size": size, **values}
        given = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        return ["runner", str(home / "job.yaml"), *given, "--output", str(home / f"{name}-{size}")]

    bare = script("bare", "--batch", "4")
    cached = ["--first-block-cache", "0.1"]
    found = {
        "bare loop, batches of 4": bare,
        "bare loop, one by one": script("bare"),
        "runner, batch_size 4": runner("4"),
        "runner, auto with its trials": runner("auto"),
        "(a) Accelerate, one by one": script("one"),
        "(b) Accelerate, batches of 4": script("four"),
        "bare, first-block cache": [*bare, *cached],
    }
    if dry:
        return found
    found["bare, compiled"] = [*bare, "--compile"]
    found["bare, compiled, from its cache"] = [*bare, "--compile"]
    found["runner, compiled, from that cache"] = runner("4", "compiled", compile="true")
    found["bare, compiled, first-block cache"] = [*bare, "--compile", *cached]
    packages = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
    for backend in (*OURS, *packages):
        found[f"bare, attention {backend}"] = [*bare, "--attention", backend]
    return found


if __name__ == "__main__":
    sys.exit(main())
