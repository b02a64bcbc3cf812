"""Trains the demo model from nothing, on two CPU cores, in about 100 minutes.

    python -m runner.demo.train [--model DIR] [--work DIR] [--pictures N]

Two processes of one thread each train together (one process of two threads is slower: the
matrices are too small to share). `--work` keeps checkpoints: the same command goes on from there.
The model folder is written as soon as there is one and again with every checkpoint.

The stages are in train_autoencoder.py and train_denoiser.py; this file starts the processes, puts
the parts together and keeps the curve.
"""

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from diffusers import AutoencoderKL

from runner.demo import MODEL_DIR
from runner.demo.check import ROWS, Score, questions, score
from runner.demo.network import PatchBasis, build_autoencoder, build_pipeline, build_tokenizer
from runner.demo.train_autoencoder import picture, psnr, train_autoencoder
from runner.demo.train_denoiser import SIZES, Denoiser, train_denoiser

PROCESSES = 2
# glibc gives large freed blocks back to the system and fetches them again with every operation;
# keeping them doubles the speed.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
    "OMP_NUM_THREADS": "1",
}
BASIS_PICTURES = 200  # of each size, to compute the latents' basis from
CURVE_QUESTIONS = 96  # at each checkpoint, other ones than the check's


def main() -> None:
    """Starts the processes, or is one of them."""
    parser = argparse.ArgumentParser(prog="python -m runner.demo.train")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "demo-train"))
    parser.add_argument("--pictures", type=int, default=225_000)
    parser.add_argument("--autoencoder-pictures", type=int, default=40_000)
    parser.add_argument("--every", type=int, default=15_000, help="pictures between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("--rank", "--port"):  # given by this command to the processes that it starts
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is None:
        sys.exit(start(sys.argv[1:]))
    train(arguments)


def start(arguments: list[str]) -> int:
    """Runs this module once per process; when one fails, ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items())]
    command = [*environment, sys.executable, "-m", "runner.demo.train", *arguments]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank), "--port", str(port)])
        for rank in range(PROCESSES)
    ]
    with suppress(KeyboardInterrupt):  # which the terminal sends to the processes as well
        while all(process.poll() is None for process in processes):
            time.sleep(0.5)
    if any(process.poll() for process in processes):
        for process in processes:
            process.terminate()
    return max(abs(process.wait()) for process in processes)


def train(arguments: argparse.Namespace) -> None:
    """One process's whole training."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    address = f"tcp://127.0.0.1:{arguments.port}"
    dist.init_process_group("gloo", address, world_size=PROCESSES, rank=arguments.rank)
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    rng = random.Random("basis")
    basis = PatchBasis([picture(rng, size) for size in SIZES for _ in range(BASIS_PICTURES)])
    autoencoder = _autoencoder(arguments, basis)
    tokenizer = build_tokenizer()

    def report(pictures: int, average: Denoiser) -> None:
        parts = {
            "vae": autoencoder,
            "text_encoder": average.clip,
            "text_encoder_2": average.t5,
            "transformer": average.flux,
        }
        pipeline = build_pipeline(parts)
        if dist.get_rank() == 0:
            _replace(arguments.model, lambda folder: pipeline.save_pretrained(folder))
        pipeline.set_progress_bar_config(disable=True)
        mine = questions(CURVE_QUESTIONS, "curve")[dist.get_rank() :: dist.get_world_size()]
        total = _sum(score(pipeline, mine))
        if dist.get_rank() == 0:
            _add_to_curve(work / "curve.md", pictures, total)

    train_denoiser(
        basis,
        tokenizer,
        arguments.pictures,
        arguments.seed,
        work / "denoiser.pt",
        arguments.every,
        report,
    )
    dist.destroy_process_group()


def _autoencoder(arguments: argparse.Namespace, basis: PatchBasis) -> AutoencoderKL:
    """The first stage's result, trained now or found in the work folder."""
    folder = arguments.work / "autoencoder"
    if not folder.exists():
        torch.manual_seed(arguments.seed)
        autoencoder = build_autoencoder()
        train_autoencoder(autoencoder, basis, arguments.autoencoder_pictures, arguments.seed)
        if dist.get_rank() == 0:
            print({name: f"{value:.1f} dB" for name, value in psnr(autoencoder, basis).items()})
            _replace(folder, lambda new: autoencoder.save_pretrained(new))
    dist.barrier()
    return AutoencoderKL.from_pretrained(folder)


def _replace(folder: Path, save: Callable[[Path], None]) -> None:
    """Saves into a new folder and swaps it in, so that no reader finds half a model."""
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    save(new)
    for file in new.rglob("*.safetensors"):
        file.chmod(0o644)  # written for its owner only, but a package's files are everybody's
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _sum(mine: Score) -> Score:
    """All processes' scores together."""
    counts = torch.tensor([[mine.right[row], mine.asked[row]] for row in ROWS])
    dist.all_reduce(counts)
    total = Score()
    for row, (right, asked) in zip(ROWS, counts.tolist(), strict=True):
        total.right[row], total.asked[row] = right, asked
    return total


def _add_to_curve(path: Path, pictures: int, total: Score) -> None:
    rows = [row for row in ROWS if total.asked[row]]
    lines = (
        []
        if path.exists()
        else [f"| pictures | {' | '.join(rows)} |", "| --- " * (len(rows) + 1) + "|"]
    )
    lines.append(f"| {pictures} | {' | '.join(f'{total.share(row):.2f}' for row in rows)} |")
    with path.open("a") as file:
        file.write("\n".join(lines) + "\n")
    print(lines[-1], flush=True)


if __name__ == "__main__":
    main()
