"""How long a rank waits between pipeline calls when every prompt has an input image of its own.

python benchmarks/input_images.py --images 2000

Prints the share of the time from the first call to the end of the last that no call works, for
image-to-image with photos of 1024 × 768 pixels and for text-to-image with as many calls, both with
the demo model, one step an image. What is between two calls is the same for both, but for the
images: their reading, their hash, their decoding.
"""

import argparse
import functools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import arguments
import numpy as np
from PIL import Image

PHOTO = (768, 1024, 3)  # height, width, colours
STEPS = {"text-to-image": 1, "image-to-image": 2}  # of which strength 0.5 leaves one


def photos(folder: Path, count: int) -> None:
    folder.mkdir()
    draw = np.random.default_rng(1)
    for number in range(count):
        noise = draw.integers(0, 255, (PHOTO[0] // 8, PHOTO[1] // 8, 3), dtype=np.uint8)
        image = Image.fromarray(noise).resize((PHOTO[1], PHOTO[0]))
        image.save(folder / f"{number}.jpg", quality=90)


def idle_share(folder: Path, count: int, task: str) -> float:
    """Of a run of the runner in this process."""
    import diffusers

    from runner.cli import main

    of_images = task == "image-to-image"
    prompts = [
        {
            "prompt": f"a red house {number}",
            **({"image": f"photos/{number}.jpg"} if of_images else {}),
        }
        for number in range(count)
    ]
    parameters = {"num_inference_steps": STEPS[task], **({"strength": 0.5} if of_images else {})}
    manifest = folder / f"{task}.yaml"
    manifest.write_text(
        json.dumps(
            {"model": "demo", "pipeline": task, "seed": 1, "parameters": parameters}
            | {"output": str(folder / task), "prompts": prompts}
        )
    )
    calls: list[tuple[float, float]] = []
    pipeline = diffusers.FluxImg2ImgPipeline if of_images else diffusers.FluxPipeline
    plain = pipeline.__call__

    @functools.wraps(plain)
    def timed(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(*given, **named)
        finally:
            calls.append((start, time.perf_counter()))

    pipeline.__call__ = timed
    try:
        assert main([str(manifest)]) == 0
    finally:
        pipeline.__call__ = plain
    busy = sum(end - start for start, end in calls)
    return 1 - busy / (calls[-1][1] - calls[0][0])


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=arguments.whole(2), default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="inputs-") as name:
        folder = Path(name)
        photos(folder / "photos", options.images)
        found = {task: round(idle_share(folder, options.images, task), 4) for task in STEPS}
    found["more"] = round(found["image-to-image"] - found["text-to-image"], 4)
    print(json.dumps({"images": options.images, "idle share": found}))


if __name__ == "__main__":
    run()
