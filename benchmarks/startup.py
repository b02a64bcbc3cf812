"""From the command to the first image, the runner against a bare script: `python startup.py`.

Both make one image of the demo model with one thread, in a new process each time, files being in
the page cache. Runs are interleaved; medians of time until the image is there, until the process
has ended, and of CPU time. About 2 minutes on 2 idle cores.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import arguments

ROOT = Path(__file__).parents[1]
BARE = str(Path(__file__).with_name("bare_image.py"))
TARGET = 1.05
TOLD = ("image s", "end s", "CPU s")


def run(command: Sequence[str], image: Path) -> tuple[float, float, float]:
    """Seconds until the image is there, until the end, and of CPU. Raises SystemExit."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    start, seen = time.monotonic(), 0.0
    process = subprocess.Popen(
        [sys.executable, *command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while True:
        if not seen and image.exists():
            seen = time.monotonic() - start
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.005)
    end = time.monotonic() - start
    if status or not image.exists():
        raise SystemExit(f"{' '.join(command)} failed")
    return seen or end, end, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=arguments.whole(1), default=9)
    default = ROOT / "outputs" / "startup.json"
    parser.add_argument("--json", type=arguments.new_file, default=default)
    options = parser.parse_args()
    times: dict[str, list[tuple[float, float, float]]] = {"runner": [], "bare script": []}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        manifest = home / "job.yaml"
        manifest.write_text("model: demo\nseed: 1\nprompts: [a red heart]\n")
        for number in range(options.runs + 1):
            out, image = home / f"out-{number}", home / f"{number}.png"
            ours = ["-m", "runner", str(manifest), "--output", str(out)]
            for kind, command, made in (
                ("runner", ours, out / "000000.png"),
                ("bare script", [BARE, str(image)], image),
            ):
                spent = run(command, made)
                if number:  # the first one warms the page cache
                    times[kind].append(spent)
    report(times, options.json)


def report(times: dict[str, list[tuple[float, float, float]]], path: Path) -> None:
    middle = {
        kind: [statistics.median(column) for column in zip(*rows, strict=True)]
        for kind, rows in times.items()
    }
    print(f"{'':<14} " + " ".join(f"{name:>8}" for name in TOLD))
    for kind, values in middle.items():
        print(f"{kind:<14} " + " ".join(f"{value:>8.2f}" for value in values))
    pairs = zip(middle["runner"], middle["bare script"], strict=True)
    ratios = [ours / bare for ours, bare in pairs]
    print(f"{'ratio':<14} " + " ".join(f"{value:>8.3f}" for value in ratios))
    print(f"asked: {TARGET} at most, until the image is there")
    about = {"date": date.today().isoformat(), "machine": f"{os.cpu_count()} cores"}
    about["machine"] += f", {platform.machine()}"
    arguments.write_json(path, {**about, "runs": times, "medians": middle})


if __name__ == "__main__":
    main()
