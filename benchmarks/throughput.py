"""The runner against two scripts and a bare loop, on the same images: `python throughput.py`.

128 images of the demo model in its three sizes, 30 % of their prompts repeated, 2 processes of one
thread each. The scripts are `baselines.py`: (a) as the guide does it, one by one; (b) in batches of
4; and the floor: a loop that saves nothing, in the batch size that suits it best. Rates are without
start-up. Runs are interleaved, what is printed are medians. About 8 minutes on 2 idle cores.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import arguments
from contest import (
    BASELINES,
    HEAD,
    MOST_IMAGES,
    ROOT,
    Item,
    Measured,
    ProgramError,
    items,
    measure,
    medians,
    row,
    write_manifest,
)

from runner import demo

FLOORS = (8, 16, 32)
TARGETS = {"(a) Accelerate, one by one": 1.5, "(b) Accelerate, batches of 4": 1.1}


class Contest:
    """The contenders, by name."""

    def __init__(self, home: Path, job: list[Item], processes: int, batch_size: Any) -> None:
        self.home, self.job, self.processes = home, job, processes
        self.json, self.manifest = home / "job.json", home / "job.yaml"
        self.json.write_text(json.dumps(job))
        self.sizes: dict[str, int] = {}
        write_manifest(self.manifest, "demo", job, batch_size=batch_size)
        self.runs = 0
        self.floor = FLOORS[0]

    def runner(self) -> Measured:
        out = self._out()
        made = self._measure(["runner", str(self.manifest), "--output", str(out)])
        summary = json.loads((out / "summary.json").read_text())
        if summary["outcome"] != "complete":
            raise ProgramError(f"the runner ended {summary['outcome']}")
        self.sizes = summary["launch"]["batch_sizes"]
        return made

    def fix_batch_sizes(self) -> float:
        """Let the runner find its batch sizes, for the runs to come; the seconds of that run."""
        seconds = self.runner().wall_s
        if self.sizes:
            found = {"batch_size": "auto", "batch_sizes": self.sizes}
            write_manifest(self.manifest, "demo", self.job, **found)
        return seconds

    def one(self) -> Measured:
        return self._baseline("one")

    def four(self) -> Measured:
        return self._baseline("four")

    def bare(self, batch: int | None = None) -> Measured:
        return self._baseline("bare", "--batch", str(batch or self.floor))

    def _baseline(self, kind: str, *more: str) -> Measured:
        out = self._out()
        made = self._measure(
            [BASELINES, kind, str(demo.MODEL_DIR), str(self.json), str(out), *more]
        )
        if kind != "bare" and len([*out.glob("*.png")]) != len(self.job):
            raise ProgramError(f"{kind}: images are missing")
        return made

    def _out(self) -> Path:
        self.runs += 1
        return self.home / f"out-{self.runs}"

    def _measure(self, program: list[str]) -> Measured:
        reports = self.home / f"reports-{self.runs}"
        return measure(program, len(self.job), reports, self.processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(1, MOST_IMAGES), default=128)
    parser.add_argument("--runs", type=arguments.whole(1), default=5)
    steps = demo.PARAMETERS["num_inference_steps"]
    parser.add_argument("--steps", type=arguments.whole(1), default=steps)
    parser.add_argument("--processes", type=arguments.whole(1, 1024), default=2)
    size = arguments.batch_size
    parser.add_argument("--batch-size", type=size, default="auto", help="of the runner")
    default = ROOT / "outputs" / "throughput.json"
    parser.add_argument("--json", type=arguments.new_file, default=default)
    options = parser.parse_args()
    if options.images < options.processes:
        parser.error(f"--images {options.images}: fewer than the {options.processes} processes")
    parameters = {**demo.PARAMETERS, "num_inference_steps": options.steps}
    job = items(options.images, sorted(demo.SIZES), parameters)
    home = Path(tempfile.mkdtemp())
    try:
        found = contend(Contest(home, job, options.processes, options.batch_size), options.runs)
    except ProgramError as error:
        raise SystemExit(str(error)) from None
    finally:
        shutil.rmtree(home)
    arguments.write_json(options.json, found)
    print(f"\nwritten to {options.json}")


def contend(contest: Contest, runs: int) -> dict[str, Any]:
    """Print the table as it grows; its numbers."""
    first_s = contest.fix_batch_sizes()
    if contest.sizes:
        print(
            f"batch_size auto found {contest.sizes}; with that the first run took {first_s:.1f} s"
        )
    floors = {size: contest.bare(size).calls_s for size in FLOORS if size <= len(contest.job)}
    contest.floor = min(floors, key=floors.__getitem__) if floors else 1
    seconds = ", ".join(f"{size}: {spent:.1f}" for size, spent in floors.items())
    print(f"seconds of the bare loop by batch size: {seconds}", flush=True)
    contenders = {
        "runner": contest.runner,
        "(a) Accelerate, one by one": contest.one,
        "(b) Accelerate, batches of 4": contest.four,
        f"bare loop, batches of {contest.floor}": contest.bare,
    }
    measured: dict[str, list[Measured]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, run in contenders.items():
            measured[name].append(run())
    middle = {name: medians(of) for name, of in measured.items()}
    *_, floor = middle.values()
    print(f"\n{HEAD}")
    for name, of in middle.items():
        print(row(name, of, floor))
    ours = middle["runner"]
    print()
    for name, target in TARGETS.items():
        ratio, cpu = ours.rate / middle[name].rate, middle[name].cpu_s / ours.cpu_s
        print(
            f"{ratio:.2f} times the images/s of {name} (asked: {target}); CPU time {cpu:.2f} times"
        )
    efficiency, cpu = floor.work_s / ours.work_s, floor.cpu_s / ours.cpu_s
    print(f"efficiency {efficiency:.3f} (asked: 0.95); by CPU time {cpu:.3f}")
    calls = (floor.calls_s / run.work_s for run in (ours, floor))
    print("of the floor's calls alone: {:.3f}, and the bare loop itself {:.3f}".format(*calls))
    return {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "processes": contest.processes,
        "batch_sizes": contest.sizes,
        "runs": {name: [asdict(run) for run in of] for name, of in measured.items()},
        "medians": {name: asdict(run) for name, run in middle.items()},
    }


if __name__ == "__main__":
    main()
