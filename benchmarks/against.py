"""What a command costs, compared with another checkout: `python against.py DIR`.

DIR is a clone at an older commit. The commands of both run in turn, each in a new process with one
thread, with the same Python and packages, files being in the page cache. Medians of the CPU time of
each process, and of the ratio of each pair. About 4 minutes on 2 idle cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import arguments

ROOT = Path(__file__).parents[1]
COMMANDS = ("--help", "validate", "plan", "run")


def cpu_s(checkout: Path, command: Sequence[str]) -> float:
    """CPU seconds of a command of a checkout. Raises SystemExit."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once too
    words = [sys.executable, "-m", "runner", *command]
    process = subprocess.Popen(
        words, cwd=checkout, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{checkout}: {' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime


def compare(name: str, other: Path, runs: int, home: Path) -> list[tuple[float, float]]:
    """(ours, the other's) of each pair."""
    manifest = home / "job.yaml"
    manifest.write_text("model: demo\nseed: 1\nprompts: [a red heart]\n")
    pairs = []
    for number in range(runs + 1):
        spent = []
        for checkout in (ROOT, other):
            out = home / f"{name}-{number}-{checkout is ROOT}"
            command = [name] if name == "--help" else [name, str(manifest), "--output", str(out)]
            spent.append(cpu_s(checkout, command))
        if number:  # the first pair compiles the modules and warms the page cache
            pairs.append((spent[0], spent[1]))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=arguments.folder, metavar="DIR")
    parser.add_argument("--runs", type=arguments.whole(1), default=21, help="a command, each side")
    parser.add_argument("--command", action="append", choices=COMMANDS)
    options = parser.parse_args()
    print(f"{'':<10} {'here s':>8} {'there s':>8} {'ratio':>8}  quartiles")
    with tempfile.TemporaryDirectory() as home:
        for name in options.command or COMMANDS:
            pairs = compare(name, options.checkout.resolve(), options.runs, Path(home))
            here, there = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratios = [one / other for one, other in pairs]
            low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            print(
                f"{name:<10} {here:>8.3f} {there:>8.3f} {ratio:>8.3f}  {low:.3f} to {high:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
