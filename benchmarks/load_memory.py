"""Memory that each of N ranks has to itself while they load a model: a table.

Makes a FLUX pipeline of about 300 MB with random float32 weights and one of 1 MB, runs each with N
processes under torchrun, and samples what the ranks have for themselves: resident memory less what
is mapped from files. The difference of the peaks, over the size of the weights in the dtype asked
for, is what the model costs a rank: about 0 where the ranks share the mapped file, 1 for a copy.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arguments
import psutil
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from diffusers import FluxTransformer2DModel  # noqa: E402
from support import tiny  # noqa: E402

SMALL = {"height": 32, "width": 32, "num_inference_steps": 1, "max_sequence_length": 16}
MB = 2**20


def big(folder: Path) -> Path:
    """The tiny pipeline with a transformer of about 75 million weights."""
    tiny.flux(folder)
    torch.manual_seed(0)
    FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=4, num_single_layers=8, attention_head_dim=64,
        num_attention_heads=8, joint_attention_dim=32, pooled_projection_dim=32,
        guidance_embeds=False, axes_dims_rope=(16, 24, 24),
    ).save_pretrained(folder / "transformer")  # fmt: skip
    return folder


def peak(model: Path, dtype: str, ranks: int, home: Path) -> float:
    """The most private memory of any rank, in MB."""
    name = f"{model.name}-{dtype}"
    manifest = home / f"{name}.yaml"
    values = {"model": str(model), "dtype": dtype, "parameters": SMALL, "seed": 1}
    manifest.write_text(json.dumps({**values, "prompts": ["a cat"] * ranks}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", "runner", str(manifest)]
    run = subprocess.Popen([*command, "--output", str(home / name)], stderr=subprocess.DEVNULL)
    most = 0
    while run.poll() is None:
        for process in psutil.Process(run.pid).children():
            try:
                memory = process.memory_info()
                most = max(most, memory.rss - memory.shared)
            except psutil.Error:
                continue  # it has ended
        time.sleep(0.02)
    if run.returncode:
        raise SystemExit(f"{manifest} failed")
    return most / MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=arguments.whole(1, 1024), default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        models = {"small": tiny.flux(home / "small"), "big": big(home / "big")}
        weights = sum(path.stat().st_size for path in models["big"].rglob("*.safetensors")) / MB
        print(f"{options.ranks} ranks, {weights:.0f} MB of float32 weights")
        print(f"{'dtype':<10} {'peak MB a rank':>14} {'without model':>14} {'copies':>8}")
        for dtype, share in (("float32", 1.0), ("bfloat16", 0.5)):
            peaks = {name: peak(path, dtype, options.ranks, home) for name, path in models.items()}
            copies = (peaks["big"] - peaks["small"]) / (weights * share)
            print(f"{dtype:<10} {peaks['big']:>14.0f} {peaks['small']:>14.0f} {copies:>8.2f}")


if __name__ == "__main__":
    main()
