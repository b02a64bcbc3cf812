"""What other LoRA weights from image to image cost: `python lora_switching.py`.

One pipeline of the demo model with its LoRA, on one thread. The same prompts in rounds: with one
set of weights, and with four sets in turn. The rounds alternate, so that other work on the machine
meets both. Where all images of a job have one set, a run fuses it; its time is the third column.
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import arguments
import torch

from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import load as load_manifest
from runner.manifest.resolve import decide, fill
from runner.model.files import local_folder
from runner.plan import Plan
from runner.render.load import load

MANIFEST = """
model: demo
seed: 1
parameters: {{num_inference_steps: {steps}}}
loras: [{{id: demo, file: sepia.safetensors}}]
sweep: {{zip: {{sepia: {weights}, word: [tree, house, boat, sun]}}}}
prompts: [{prompts}]
"""
FUSED = "one set, fused"
ONE, FOUR = [0.8, 0.8, 0.8, 0.8], [0.8, 0.2, 0.5, 1.1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=arguments.whole(4), default=64)
    parser.add_argument("--steps", type=arguments.whole(1), default=8)
    parser.add_argument("--rounds", type=arguments.whole(1), default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plans = {"one set": planned(options, ONE), "four sets": planned(options, FOUR)}
    shared = renderer_of(plans["four sets"], fused=False)
    fused = renderer_of(plans["one set"], fused=True)
    times: dict[str, list[float]] = {name: [] for name in (*plans, FUSED)}
    for renderer in (shared, fused):
        seconds(renderer, plans["one set"], 4)  # what only the first calls do
    peaks = []
    for _ in range(options.rounds):
        for name, plan in plans.items():
            times[name].append(seconds(shared, plan, options.prompts))
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        times[FUSED].append(seconds(fused, plans["one set"], options.prompts))
    base = statistics.median(times["one set"])
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name:<15} {middle:7.2f} s for {options.prompts} images, ratio {middle / base:.3f}")
    print(f"peak memory after the first round {peaks[0]:.0f} MiB, after the last {peaks[-1]:.0f}")


def planned(options: argparse.Namespace, weights: list[float]) -> Plan:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "job.yaml")
        prompts = ", ".join(f'"a {{word}} {number}"' for number in range(options.prompts // 4))
        text = MANIFEST.format(steps=options.steps, weights=weights, prompts=prompts)
        path.write_text(text)
        loaded = load_manifest(path)
    manifest = fill(loaded.manifest, decide(loaded.manifest, None))
    return Plan(manifest, loaded.prompts, loaded.root)


def renderer_of(plan: Plan, *, fused: bool):
    folder = local_folder(plan.manifest.model)
    only = plan.only_loras if fused else None
    device = torch.device("cpu")
    stop = Stop(20)
    return load(plan.manifest, folder, device=device, world=World(), stop=stop, only_loras=only)


def seconds(renderer, plan: Plan, images: int) -> float:
    start = time.perf_counter()
    for index in range(images):
        rendered = renderer.render([plan.task(index)])
        assert rendered.error is None, rendered.error
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
