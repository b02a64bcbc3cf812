"""What an image of the plan costs before and after its pixels, for folders of 10³ to 10⁶ images.

    python benchmarks/scale.py [--images 1000 10000 100000 1000000] [--json FILE]

For each size, a prompt file and a folder where all but the last 1,000 images (10 % where there are
fewer) are done: the runner makes 1,000 with a renderer that draws 16 × 16 pixels of noise; the
others are copies of these, written down in a journal by the runner's own code. Then each command is
timed from its start in a process of its own: `validate`, `plan`, `run` with the demo model until
its first new image begins, and `status`, which writes the reports anew; with their peak memory. A
second table has what each step costs an image.

A million images take 4 GB of disk, and five minutes more than the smaller sizes together.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import arguments

ROOT = Path(__file__).parents[1]
LEFT = 1000  # images that are still to make
MADE = 1000  # by the runner; the others are copies of them
MB = 2**20
COMMANDS = ("validate", "plan", "first image", "status")
STEPS = ("load", "plan", "merge", "scan", "survey", "batches", "count", "rebuild")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    count = arguments.whole(10, 10**7)
    parser.add_argument("--images", type=count, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--json", type=arguments.new_file)
    parser.add_argument(
        "--folder", type=arguments.folder, help="where the images go (default: temporary)"
    )
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, manifest, *words = options.child
        CHILDREN[name](manifest, *words)
        return
    rows = []
    print(f"{'images':>8} {'made in':>8}", *(f"{name:>20}" for name in COMMANDS))
    for images in options.images:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows.append(measure(Path(folder), images))
    print_steps(rows)
    arguments.write_json(options.json, rows)


def measure(folder: Path, images: int) -> dict[str, Any]:
    free = os.statvfs(folder)
    if free.f_favail < images + 1000 or free.f_bavail * free.f_frsize < images * 8192:
        raise SystemExit(f"{folder}: no room for {images} images")
    manifest = write_manifest(folder, images)
    left = min(LEFT, images // 10)
    made = timed([*child("make", manifest), str(images - left)])
    commands = {
        "validate": timed(runner("validate", manifest)),
        "plan": timed(runner("plan", manifest)),
        "first image": timed(child("first", manifest)),
        "status": timed(runner("status", manifest)),
    }
    cells = (f"{row['s']:>9.2f} s {row['mb']:>6.0f} MB" for row in commands.values())
    print(f"{images:>8} {made['s']:>6.0f} s", *cells, flush=True)
    return {"images": images, "done": images - left, "commands": commands, "steps": steps(manifest)}


def write_manifest(folder: Path, images: int) -> Path:
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(images):
            file.write(json.dumps({"prompt": f"a red cat, number {number}"}) + "\n")
    manifest = folder / "job.yaml"
    values = {
        "model": "demo",
        "seed": 1,
        "output": {"dir": str(folder / "out"), "images_per_folder": 1000},
        "prompts": {"file": "prompts.jsonl"},
    }
    manifest.write_text(json.dumps(values))
    return manifest


def runner(command: str, manifest: Path) -> list[str]:
    return [sys.executable, "-m", "runner", command, str(manifest)]


def child(name: str, manifest: Path) -> list[str]:
    return [sys.executable, __file__, "--child", name, str(manifest)]


def timed(command: Sequence[str]) -> dict[str, float]:
    """Wall and CPU seconds of a process from its start, and the most memory that it had."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    words = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {process.returncode}\n{words}")
    return {
        "s": time.monotonic() - start,
        "cpu_s": used.ru_utime + used.ru_stime,
        "mb": used.ru_maxrss * 1024 / MB,
    }


def steps(manifest: Path) -> dict[str, float]:
    """Step → CPU microseconds an image, the median of several times for small folders."""
    output = subprocess.run(
        child("steps", manifest),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    values: dict[str, float] = json.loads(output)
    return values


def print_steps(rows: Sequence[dict[str, Any]]) -> None:
    print("\nCPU µs an image")
    print(f"{'images':>8}", *(f"{name:>8}" for name in (*STEPS, "all")))
    for row in rows:
        cells = [*(row["steps"][name] for name in STEPS), sum(row["steps"].values())]
        print(f"{row['images']:>8}", *(f"{cell:>8.2f}" for cell in cells))


# --- what runs in processes of its own ----------------------------------------------------------


def make(manifest: str, done: str) -> None:
    """A folder with so many images done."""
    made = min(MADE, int(done))
    make_by_runner(manifest, made)
    copy(Path(manifest), made, int(done))


def make_by_runner(manifest: str, images: int) -> None:
    from runner.cli import main
    from runner.render import load
    from runner.render.fake import FakePipeline

    class Noise(FakePipeline):
        """16 × 16 pixels, and a record as long as a pipeline's."""

        def _pixels(self, task: Any) -> Any:
            return super()._pixels(dataclasses.replace(task, parameters={}))

        def _made(self, tasks: Any, degraded: Any) -> dict[str, Any]:
            about = {"strategy": "data_parallel", "device": "cpu", "dtype": "float32"}
            how = {"batch_size": 1, "degraded": [], "seconds": round(random.random(), 4)}
            return {"width": 16, "height": 16, **about, **how}

    load.load = lambda *_, stop, **__: Noise(stop)  # type: ignore[assignment,return-value]
    os.fsync = lambda descriptor: None
    code = main(["run", manifest, "--limit", str(images)])
    if code:
        sys.exit(code)


def copy(manifest: Path, made: int, done: int) -> None:
    """One more launch, as its journal and its files tell it."""
    from runner.folder.journal import Journal, merge

    folder, plan, prints = opened(manifest)
    record = merge(folder.journals, len(plan))
    if sorted(record.done) != list(range(made)):
        raise SystemExit("the runner did not make what it was asked for")
    files = [(folder.image(plan.task(i)).read_bytes(), record.done[i]) for i in range(made)]
    journal = Journal(folder.journals, record.generation + 2, 0, "0badcafe")
    for task in itertools.islice(plan.tasks(), made, done):
        data, of = files[task.index % made]
        path = folder.image(task)
        if not task.index % plan.manifest.output.images_per_folder:
            path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        how = {**of.made, "seconds": round(random.random(), 4)}
        journal.done(task.index, prints.of(task), of.size, of.crc, how)
    journal.close()


def opened(manifest: Path) -> tuple[Any, Any, Any]:
    """Folder, plan, fingerprints."""
    from runner.folder.paths import OutputFolder
    from runner.manifest.load import load
    from runner.manifest.resolve import decide, fill
    from runner.model import files as model
    from runner.plan import Fingerprints, Plan
    from runner.prepare.prepare import recorded_in

    loaded = load(manifest)
    folder = OutputFolder(Path(str(loaded.manifest.output.dir)), loaded.manifest.output)
    full = fill(loaded.manifest, decide(loaded.manifest, recorded_in(folder)))
    plan = Plan(full, loaded.prompts, loaded.root)
    return folder, plan, Fingerprints(full, model.identity(full.model))


def first(manifest: str) -> None:
    """The runner until its first new image begins."""
    from runner.cli import main
    from runner.render import pipeline

    pipeline.Pipeline.render = lambda *_: os._exit(0)  # type: ignore[assignment,method-assign]
    main(["run", manifest])
    raise SystemExit("no image was begun")


def measure_steps(manifest: str) -> None:
    from runner.folder.counts import Launch, count
    from runner.folder.journal import merge
    from runner.folder.reports import rebuild
    from runner.folder.scan import scan
    from runner.folder.survey import pending_batches, survey
    from runner.manifest.load import load
    from runner.plan import Plan, wanted_images

    folder, plan, prints = opened(Path(manifest))
    record = merge(folder.journals, len(plan))
    found = survey(folder, plan, prints, record, set())
    wanted = wanted_images(plan, None, None)
    images = len(plan)
    calls: dict[str, Callable[[], Any]] = {
        "load": lambda: load(Path(manifest)),
        "plan": lambda: Plan(plan.manifest, plan.prompts, plan.root),
        "merge": lambda: merge(folder.journals, len(plan)),
        "scan": lambda: scan(folder, plan),
        "survey": lambda: survey(folder, plan, prints, record, set()),
        "batches": lambda: pending_batches(plan, found.todo, wanted),
        "count": lambda: count(found.states, record, wanted, Launch("0" * 8, 0)),
        "rebuild": lambda: rebuild(folder, plan, record, found.states, "0" * 8),
    }
    times = max(1, min(9, 100_000 // images))
    costs = {
        name: statistics.median(cpu_s(call) for _ in range(times)) for name, call in calls.items()
    }
    print(json.dumps({name: cost / images * 1e6 for name, cost in costs.items()}))


def cpu_s(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


CHILDREN: dict[str, Callable[..., None]] = {"make": make, "first": first, "steps": measure_steps}


if __name__ == "__main__":
    main()
