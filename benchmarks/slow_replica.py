"""One replica of two is four times slower: how close to the ideal split the work ends.

    python benchmarks/slow_replica.py [--images 128] [--runs 3] [--slowness 4] [--json FILE]

Two processes with one thread each make images of the demo model, batch size 1; on rank 1 each
pipeline call is followed by a sleep of (slowness - 1) times as long. The generation time is from
the begin of the first call to the end of the last one. The ideal is what both would take without a
pause, each at the speed measured in this run and from when it began; half the images each is what
static shards would take. The images are compared with those of one process. Medians of several
runs, about five minutes.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import arguments
import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PROMPTS = ("a red fox in the snow", "the moon on the sea", "a dog under the sun", "a green house")
SLOWNESS = "SLOW_REPLICA_SLOWNESS"
TIMES = "SLOW_REPLICA_TIMES"  # the folder where ranks note when their calls were


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(8), default=128)
    parser.add_argument("--runs", type=arguments.whole(1), default=3)
    parser.add_argument("--slowness", type=arguments.real(1, 1000), default=4.0)
    parser.add_argument("--json", type=arguments.new_file)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.exit(child(options.child))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = write_manifest(folder, options.images)
        launch(manifest, folder / "alone", 1, 1.0)
        expected = pixels(folder / "alone")
        print(f"{'seconds':>8} {'ideal':>8} {'ratio':>6} {'static':>8}  images, busy s, idle s")
        for number in range(options.runs):
            out = folder / f"{number}"
            launch(manifest, out, 2, options.slowness)
            if pixels(out) != expected:
                raise SystemExit("the images differ from those of one process")
            rows.append(row(out, options.images))
            show(rows[-1])
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"median {ratio:.3f} of the ideal; images identical")
    arguments.write_json(options.json, {"runs": rows, "ratio": ratio})


def write_manifest(folder: Path, images: int) -> Path:
    manifest = folder / "job.yaml"
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(images)]
    manifest.write_text(json.dumps({"model": "demo", "seed": 1, "prompts": prompts}))
    return manifest


def launch(manifest: Path, out: Path, processes: int, slowness: float) -> None:
    times = out.with_suffix(".times")
    times.mkdir()
    program = [__file__, "--child", str(manifest)]
    launcher = [sys.executable]
    if processes > 1:
        run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
        launcher += run
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= {SLOWNESS: str(slowness), TIMES: str(times), "SLOW_REPLICA_OUTPUT": str(out)}
    subprocess.run([*launcher, *program], env=environment, stderr=subprocess.DEVNULL, check=True)


def child(manifest: str) -> int:
    """The runner, with a slow rank 1 and a note of every call."""
    from runner.cli import main as run
    from runner.render.pipeline import Pipeline

    rank = int(os.environ.get("RANK", "0"))
    slowness = float(os.environ[SLOWNESS]) if rank == 1 else 1.0
    call = Pipeline.images
    notes = (Path(os.environ[TIMES]) / f"{rank}").open("a")

    def slow(self: Pipeline, tasks: Any) -> Any:
        start = time.monotonic()
        images = call(self, tasks)
        time.sleep((slowness - 1) * (time.monotonic() - start))
        print(start, time.monotonic(), file=notes, flush=True)
        return images

    Pipeline.images = slow  # type: ignore[method-assign]
    return run(["run", manifest, "--output", os.environ["SLOW_REPLICA_OUTPUT"]])


def row(out: Path, images: int) -> dict[str, Any]:
    """`monotonic` is one clock for all processes of a machine."""
    calls = {
        int(path.name): [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
        for path in out.with_suffix(".times").iterdir()
    }
    if idle := [rank for rank, times in calls.items() if not times]:
        raise SystemExit(f"rank {idle[0]} began too late to make an image; use more --images")
    begin = {rank: times[0][0] for rank, times in calls.items()}
    an_image = {rank: (times[-1][1] - times[0][0]) / len(times) for rank, times in calls.items()}
    first = min(begin.values())
    seconds = max(times[-1][1] for times in calls.values()) - first
    late = sum((begin[rank] - first) / an_image[rank] for rank in calls)  # images not made
    ideal = (images + late) / sum(1 / a for a in an_image.values())
    static = max(begin[rank] - first + images / len(calls) * an_image[rank] for rank in calls)
    replicas = json.loads((out / "summary.json").read_text())["replicas"]
    return {
        "s": seconds, "ideal_s": ideal, "ratio": seconds / ideal, "static_s": static,
        "replicas": replicas,
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    each = [f"{one['images']}, {one['busy_s']:.1f}, {one['idle_s']:.1f}" for one in row["replicas"]]
    print(
        f"{row['s']:>8.1f} {row['ideal_s']:>8.1f} {row['ratio']:>6.3f} {row['static_s']:>8.1f}  "
        f"{' | '.join(each)}",
        flush=True,
    )


def pixels(out: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(np.asarray(Image.open(path)).tobytes()).hexdigest()
        for path in sorted(out.glob("*.png"))
    }


if __name__ == "__main__":
    main()
