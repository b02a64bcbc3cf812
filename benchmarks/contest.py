"""Programs that make the same images, measured side by side: what the benchmarks here share."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
BASELINES = str(HERE / "baselines.py")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "heart")
REPEATED = 0.3
PAIRS = [(a, b) for a in COLOURS for b in COLOURS if a != b]
PROMPTS = [f"a {a} {shape} on a {b} background" for shape in SHAPES for a, b in PAIRS]
MOST_IMAGES = round(len(PROMPTS) / (1 - REPEATED))

Item = dict[str, Any]


class ProgramError(Exception):
    """A program failed; its last words."""


@dataclass
class Measured:
    """One run. Times in seconds; `work` is from the first pipeline call to the last rank's end."""

    images: int
    wall_s: float
    start_up_s: float
    work_s: float
    calls_s: float  # in pipeline calls, a rank
    cpu_s: float  # of the work, all ranks together
    idle: float  # share of the work in which a rank is in no pipeline call
    peak_mb: float  # of a rank; of the device where there is one

    @property
    def rate(self) -> float:
        return self.images / self.work_s


def items(count: int, sizes: Sequence[tuple[int, int]], parameters: dict[str, Any]) -> list[Item]:
    """Images of mixed (height, width), 30 % of their prompts repeated with other seeds. `count` is
    MOST_IMAGES at most."""
    draw = random.Random(1)
    distinct = max(1, round(count * (1 - REPEATED)))
    prompts = draw.sample(PROMPTS, distinct)
    prompts += draw.choices(prompts, k=count - distinct)
    draw.shuffle(prompts)
    made = []
    for index, prompt in enumerate(prompts):
        height, width = sizes[draw.randrange(len(sizes))]
        own = {**parameters, "height": height, "width": width}
        made.append({"index": index, "prompt": prompt, "seed": index, "parameters": own})
    return made


def write_manifest(path: Path, model: str, job: Sequence[Item], **values: Any) -> None:
    prompts = [{key: item[key] for key in ("prompt", "seed", "parameters")} for item in job]
    path.write_text(json.dumps({"model": model, "seed": 0, **values, "prompts": prompts}))


def measure(
    program: Sequence[str],
    images: int,
    folder: Path,
    processes: int,
    timeout_s: float | None = None,
) -> Measured:
    """Run a program under torchrun with one thread a process. Raises ProgramError."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", str(HERE / "meter.py"), str(folder), *program]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    launched = time.time()
    given: dict[str, Any] = {"capture_output": True, "text": True, "env": env, "check": False}
    try:
        done = subprocess.run(command, timeout=timeout_s, **given)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{' '.join(program)}: no time left") from None
    wall_s = time.time() - launched
    if done.returncode:
        raise ProgramError(f"{' '.join(program)} failed:\n{done.stderr[-3000:]}")
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    first = min(rank["calls"][0][0] for rank in ranks if rank["calls"])
    work_s = max(rank["ended"] for rank in ranks) - first
    calls_s = sum(end - start for rank in ranks for start, end in rank["calls"]) / processes
    peak = max(rank["device_mb"] or rank["peak_mb"] for rank in ranks)
    cpu_s = sum(rank["cpu_s"] for rank in ranks)
    start_up_s = first - launched
    idle = max(0.0, 1 - calls_s / work_s)
    return Measured(images, wall_s, start_up_s, work_s, calls_s, cpu_s, idle, peak)


def medians(runs: Sequence[Measured]) -> Measured:
    rows = [asdict(run) for run in runs]
    return Measured(**{key: statistics.median(row[key] for row in rows) for key in rows[0]})


def row(name: str, run: Measured, floor: Measured) -> str:
    """A line; efficiency is the floor's time over this one's, both without start-up."""
    times = f"{run.work_s:>7.1f} {run.wall_s:>7.1f} {run.start_up_s:>8.1f} {run.cpu_s:>7.1f}"
    efficiency = floor.work_s / run.work_s
    return (
        f"{name:<34} {run.rate:>8.2f} {times} {run.idle:>6.1%} {run.peak_mb:>8.0f} "
        f"{efficiency:>10.3f}"
    )


HEAD = (
    f"{'':<34} {'images/s':>8} {'work s':>7} {'wall s':>7} {'start s':>8} {'CPU s':>7} "
    f"{'idle':>6} {'peak MB':>8} {'efficiency':>10}"
)
