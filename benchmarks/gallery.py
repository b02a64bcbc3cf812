"""report.html and the contact sheet of a job of 5,000 images.

    python benchmarks/gallery.py [--images 5000] [--folder DIR] [--screenshots DIR] [--json FILE]

The runner makes the images with a renderer that draws the demo's scenes, 384 × 384 pixels, and
fails, flags and varies some. Each command runs in a process of its own: `report` with all
thumbnails to make and again with none, `sheet` for 100 images and for all. Then headless Chromium
opens the page from its file: the time until it has drawn the first images, and from a key pressed
in the search until the page shows what fits. Needs the browser (`apt-get install chromium`).
"""

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import arguments

if TYPE_CHECKING:
    from support.browser import Browser

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))

SIDE = 384  # pixels
DIFFERENT = 400  # scenes
FEW = 100  # images of the smaller sheet
STEPS, SCALES = (8, 20, 30), (1, 3.5, 7)
FAULTS = (
    ("non-finite", "the image has NaN values"),
    ("out-of-memory", "CUDA out of memory: tried to allocate 2.25 GiB"),
)
# From the key to the next frame that the browser has drawn.
SEARCH = """async words => {
  const search = document.querySelector("input[type=search]");
  const start = performance.now();
  search.value = words;
  search.dispatchEvent(new Event("input"));
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
WORDS = ("red", "red house", "sea at night", "no such thing", "417", "mountains", "a", "")
WINDOWS = {  # width, height, colours
    "light": (1280, 860, "light"),
    "dark": (1280, 860, "dark"),
    "wide": (2200, 1200, "light"),
    "phone": (390, 844, "light"),
    "phone-dark": (390, 844, "dark"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(10, 10**5), default=5000)
    parser.add_argument("--folder", type=arguments.folder, help="where the job is kept")
    parser.add_argument("--screenshots", type=arguments.folder, help="where pictures of it go")
    parser.add_argument("--json", type=arguments.new_file)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.exit(make(options.child))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        measured = measure(folder, options.images, options.screenshots)
    arguments.write_json(options.json, measured)


def measure(folder: Path, images: int, screenshots: Path | None) -> dict[str, Any]:
    manifest = write_manifest(folder, images)
    timed([sys.executable, __file__, "--child", str(manifest)])
    command = [sys.executable, "-m", "runner", "report", str(manifest)]
    measured = {"first": timed(command), "again": timed(command)}
    for name, figures in measured.items():
        print(f"report, {name:<6} {figures['s']:>6.1f} s {figures['mb']:>6.0f} MB", flush=True)
    measured["sheets"] = sheets(folder, manifest, images)
    page = folder / "out" / "report.html"
    print(f"report.html   {page.stat().st_size / 1e6:.2f} MB")
    measured |= {"bytes": page.stat().st_size, **browse(page, screenshots)}
    return measured


def sheets(folder: Path, manifest: Path, images: int) -> dict[int, Any]:
    """Number of images → what their contact sheet took, as PNG."""
    (folder / "few").mkdir(exist_ok=True)
    few = write_manifest(folder / "few", min(FEW, images))
    timed([sys.executable, __file__, "--child", str(few)])
    measured = {}
    for path, number in ((few, min(FEW, images)), (manifest, images)):
        file = str(folder / f"{number}.png")
        command = [sys.executable, "-m", "runner", "sheet", str(path), "--file", file]
        measured[number] = timed([*command, "--size", "80"])
        figures = measured[number]
        print(f"sheet of {number:<6} {figures['s']:>6.1f} s {figures['mb']:>6.0f} MB", flush=True)
    return measured


def write_manifest(folder: Path, images: int) -> Path:
    from runner.demo.captions import caption

    rng = random.Random(1)
    lines = []
    for number, scene in enumerate(rng.choices(scenes(), k=images)):
        own = {"num_inference_steps": rng.choice(STEPS), "guidance_scale": rng.choice(SCALES)}
        text = {"prompt": caption(scene, rng), "id": f"scene-{number:05d}"}
        values = {**text, "meta": {"scene": scenes().index(scene)}, "parameters": own}
        lines.append(json.dumps(values) + "\n")
    (folder / "prompts.jsonl").write_text("".join(lines))
    manifest = folder / "job.yaml"
    values = {"model": "demo", "seed": 1, "output": str(folder / "out")}
    values["parameters"] = {"height": SIDE, "width": SIDE}
    manifest.write_text(json.dumps({**values, "prompts": {"file": "prompts.jsonl"}}))
    return manifest


@functools.cache
def scenes() -> list[Any]:
    from runner.demo.captions import random_scene

    rng = random.Random(1)
    return [random_scene(rng, held=False) for _ in range(DIFFERENT)]


@functools.cache
def drawn(number: int, mirrored: bool) -> Any:
    """The pixels of a scene; in big steps, which are quicker to draw."""
    import numpy as np

    from runner.demo.draw import draw

    pixels = draw(scenes()[number], (SIDE // 2, SIDE // 2), mirrored).repeat(2, 0).repeat(2, 1)
    return (255 * np.clip(pixels, 0, 1)).astype(np.uint8)


def timed(command: list[str]) -> dict[str, float]:
    """Seconds of a process, and the most memory that it had."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):  # some images fail on purpose
        raise SystemExit(f"{' '.join(command)}: {process.returncode}")
    return {"s": time.monotonic() - start, "mb": used.ru_maxrss / 1024}


def make(manifest: Path) -> int:
    """The runner, with a renderer that draws."""
    from runner.cli import main as run
    from runner.render import load
    from runner.render.fake import FakePipeline
    from runner.render.results import Failure, Rendered

    class Drawn(FakePipeline):
        def render(self, tasks: Any, degraded: Any = ()) -> Rendered:
            (task,) = tasks
            if task.index % 97 == 13:
                return Rendered([Failure(task, *FAULTS[task.index % 2])])
            return super().render(tasks, degraded)

        def _pixels(self, task: Any) -> Any:
            return drawn(task.meta["scene"], bool(task.seed % 2))

        def _made(self, tasks: Any, degraded: Any) -> dict[str, Any]:
            (task,) = tasks
            about = {"width": SIDE, "height": SIDE, "strategy": "data_parallel"}
            made = {**about, "device": "cpu", "dtype": "float32", "batch_size": 1}
            made["degraded"] = ["batch split"] if task.index % 61 == 7 else []
            if task.index % 83 == 5:
                made["flagged"] = "black"
            return {**made, "seconds": round(random.uniform(0.9, 1.3), 4)}

    load.load = lambda *_, stop, **__: Drawn(stop)  # type: ignore[assignment,return-value]
    os.fsync = lambda descriptor: None
    return run(["run", str(manifest)])


def browse(page: Path, screenshots: Path | None) -> dict[str, Any]:
    from support.browser import browser

    with browser() as chromium:
        start = time.monotonic()
        tab = chromium.open(page)
        opened = time.monotonic() - start
        searches = {words: tab.evaluate(SEARCH, words) for words in WORDS}
        if screenshots:
            take(chromium, page, screenshots)
        complaints = chromium.complaints
    slowest = max(searches.values())
    print(f"opened in     {opened:.2f} s")
    print(f"searched in   {statistics.median(searches.values()):.0f} ms, {slowest:.0f} ms at most")
    print(f"the browser complains about {complaints or 'nothing'}")
    return {"opened_s": opened, "searched_ms": searches, "complaints": complaints}


def take(chromium: "Browser", page: Path, folder: Path) -> None:
    for name, (width, height, colours) in WINDOWS.items():
        size = {"width": width, "height": height}
        tab = chromium.open(page, viewport=size, color_scheme=colours)
        tab.wait_for_timeout(2000)  # for pictures that lie far below, the browser takes its time
        tab.screenshot(path=folder / f"{name}.png")


if __name__ == "__main__":
    main()
