"""What a user would write without the runner: `python baselines.py KIND MODEL JOB OUT`.

JOB is a JSON list of {prompt, seed, parameters}. `one` and `four` split it by Accelerate and save
every image; `bare` only calls the pipeline.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arguments
import torch
from accelerate import PartialState
from diffusers import DiffusionPipeline


def batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Items of equal parameters, so many at once."""
    alike: dict[str, list[Any]] = {}
    for item in items:
        alike.setdefault(json.dumps(item["parameters"], sort_keys=True), []).append(item)
    for group in alike.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


def call(pipe: Any, batch: list[Any], **more: Any) -> Any:
    generators = [torch.Generator("cpu").manual_seed(item["seed"]) for item in batch]
    prompts = [item["prompt"] for item in batch]
    return pipe(prompts, generator=generators, **batch[0]["parameters"], **more).images


def saved(pipe: Any, items: list[Any], size: int, out: Path) -> None:
    out.mkdir(exist_ok=True)
    for batch in batches(items, size):
        for item, image in zip(batch, call(pipe, batch), strict=True):
            image.save(out / f"{item['index']:06d}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("one", "four", "bare"))
    parser.add_argument("model")
    parser.add_argument("job", type=arguments.file)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=arguments.whole(1), default=1, help="of the bare loop")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--attention", help="a backend, by diffusers' name")
    parser.add_argument("--compile", action="store_true", help="the repeated blocks")
    parser.add_argument(
        "--first-block-cache", type=arguments.real(0, 1), metavar="THRESHOLD", help="0: none"
    )
    options = parser.parse_args()
    state = PartialState(cpu=not torch.accelerator.is_available())
    dtype = getattr(torch, options.dtype)
    pipe = DiffusionPipeline.from_pretrained(options.model, dtype=dtype).to(state.device)
    pipe.set_progress_bar_config(disable=True)
    if options.attention:
        pipe.transformer.set_attention_backend(options.attention)
    if options.first_block_cache:
        from diffusers import FirstBlockCacheConfig

        pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=options.first_block_cache))
    if options.compile:
        pipe.transformer.compile_repeated_blocks()
    items = json.loads(options.job.read_text())
    if options.kind == "bare":
        mine = [*batches(items, options.batch)][state.process_index :: state.num_processes]
        for batch in mine:
            call(pipe, batch, output_type="pt")
    else:
        with state.split_between_processes(items) as part:
            saved(pipe, part, {"one": 1, "four": 4}[options.kind], options.out)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
