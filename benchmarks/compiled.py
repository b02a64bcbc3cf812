"""What `compile: true` costs a start, and what its kept code saves: `python compiled.py`.

The demo model with one thread, each time in a new process: from the command to the first image
without compiled blocks, with an empty folder for the code, and with the code kept from then. Then
one plan of two sizes in batches of up to four, by two processes and by one, whose images are
compared. About 10 minutes on 2 idle cores, most of them the C++ compiler's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import arguments
import numpy as np
from PIL import Image
from startup import ROOT, run

BATCH = 4
IMAGES = {(128, 128): 5, (160, 96): 4}  # by height and width: batches of 4, 1 and 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=arguments.whole(1), default=3, help="of what takes no compiler"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{name}/code"
        first_image(Path(name), options.runs)
        same_images(Path(name))


def first_image(home: Path, runs: int) -> None:
    """Seconds until the image is there and of CPU, and both over those without compiled blocks."""
    manifest = home / "one.yaml"
    manifest.write_text("model: demo\nseed: 1\nprompts: [a red heart]\n")

    def spent(name: str, compiled: str) -> tuple[float, float]:
        out = home / name
        given = ["-m", "runner", str(manifest), "--output", str(out)]
        image_s, _, cpu_s = run([*given, "--set", f"compile={compiled}"], out / "000000.png")
        return image_s, cpu_s

    spent("unmeasured", "false")  # the page cache is warm from now on
    times = {"without": [], "compiled": [spent("cold", "true")], "with kept code": []}
    for number in range(runs):  # in turn: other work on the machine meets both
        times["without"].append(spent(f"plain-{number}", "false"))
        times["with kept code"].append(spent(f"warm-{number}", "true"))
    print(f"{'':<16} {'image s':>8} {'CPU s':>8} {'ratio':>8} {'of CPU':>8}")
    middle = {
        kind: [statistics.median(column) for column in zip(*rows, strict=True)]
        for kind, rows in times.items()
    }
    for kind, values in middle.items():
        ratios = [one / base for one, base in zip(values, middle["without"], strict=True)]
        print(f"{kind:<16} " + " ".join(f"{value:>8.2f}" for value in (*values, *ratios)))


def same_images(home: Path) -> None:
    manifest = home / "many.yaml"
    prompts = [
        {
            "prompt": "a red heart",
            "parameters": {"height": height, "width": width, "num_images_per_prompt": count},
        }
        for (height, width), count in IMAGES.items()
    ]
    job = {"model": "demo", "seed": 1, "batch_size": BATCH, "prompts": prompts}
    manifest.write_text(json.dumps(job))
    plain = images(manifest, home / "many-plain", 1, "false")
    two = images(manifest, home / "many-2", 2, "true")
    one = images(manifest, home / "many-1", 1, "true")
    apart = max(int(np.abs(one[name] - plain[name]).max()) for name in plain)
    is_same = all(np.array_equal(one[name], two[name]) for name in plain)
    word = "equal" if is_same else "not equal"
    print(f"{len(plain)} images of 2 sizes, by 1 and by 2 processes: {word}")
    print(f"from those without compiled blocks they differ by {apart} of 255 at most")


def images(manifest: Path, out: Path, processes: int, compiled: str) -> dict[str, np.ndarray]:
    """Name → pixels of what that many processes make."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launcher, "-m", "runner", str(manifest), "--output", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--set", f"compile={compiled}"],
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return {path.name: np.asarray(Image.open(path)).astype(int) for path in out.glob("*.png")}


if __name__ == "__main__":
    main()
