"""Too little memory, values that are not finite, black and flagged images."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from support.jobs import Job

from runner.errors import GaveUpError
from runner.launch.device_errors import is_fatal, is_out_of_memory
from runner.launch.stop import Stop
from runner.plan import Task
from runner.render.pipeline import Pipeline
from runner.render.results import DroppedError, Failure, Image
from runner.strategies import DataParallel

PARAMETERS = {"height": 32, "width": 32, "num_inference_steps": 2, "max_sequence_length": 16}


def tasks(count: int) -> list[Task]:
    return [Task(i, i, f"a cat {'on ' * (i % 3)}house", i, PARAMETERS) for i in range(count)]


@pytest.fixture
def pipe(flux: Path) -> Iterator[Any]:
    loaded = diffusers.FluxPipeline.from_pretrained(flux)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def pipeline(pipe: Any, **rescue: str) -> Pipeline:
    cpu = torch.device("cpu")
    return Pipeline(
        pipe, device=cpu, dtype="float32", strategy=DataParallel(), stop=Stop(20), **rescue
    )


def short_of_memory(pipe: Any, most: int, never: str = "-") -> list[int]:
    """A GPU on which `most` images fit. Returns the batch sizes asked for."""
    sizes: list[int] = []
    encode = pipe.encode_prompt

    def encoding(prompt: str | list[str], *args: Any, **kwargs: Any) -> Any:
        prompts = [prompt] if isinstance(prompt, str) else prompt
        sizes.append(len(prompts))
        if len(prompts) > most or any(never in one for one in prompts):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return encode(prompt, *args, **kwargs)

    pipe.encode_prompt = encoding
    return sizes


# Case 33.
def test_a_batch_without_memory_is_halved_until_it_fits(pipe: Any) -> None:
    sizes = short_of_memory(pipe, most=2, never="on on")
    results = pipeline(pipe).render(tasks(8)).results
    assert sizes[:5] == [8, 8, 4, 2, 2]  # the first once more, after memory was freed
    assert [result.task.index for result in results] == list(range(8))
    failed = [result.task.index for result in results if isinstance(result, Failure)]
    assert failed == [2, 5]
    for result in results:
        if isinstance(result, Image):
            assert result.made["degraded"] == ["batch split"]
        else:
            assert result.kind == "out-of-memory"


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"),
    torch.AcceleratorError("HIP error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("MPS backend out of memory (MPS allocated: 3.82 GiB, max allowed: 41.47 GiB)."),
    RuntimeError("Invalid buffer size: 24.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: str(error)[:30])
def test_every_way_to_say_that_memory_is_missing(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_fatal(error)


def test_what_says_something_else() -> None:
    broken = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert is_fatal(broken)
    assert not is_out_of_memory(broken)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("CUDA out of memory"))


def test_an_error_outside_the_allocator_does_not_end_the_rank(pipe: Any) -> None:
    """And the batch is made as it was planned where it fits once memory is freed."""
    encode, calls = pipe.encode_prompt, []

    def encoding(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return encode(*args, **kwargs)

    pipe.encode_prompt = encoding
    results = pipeline(pipe).render(tasks(3)).results
    assert [type(result) for result in results] == [Image] * 3
    assert all(isinstance(one, Image) and one.made["degraded"] == [] for one in results)
    assert len(calls) == 2


def test_a_rank_gives_up_after_several_images_without_memory(pipe: Any) -> None:
    short_of_memory(pipe, most=0)
    rendered = pipeline(pipe).render(tasks(8))
    assert isinstance(rendered.error, GaveUpError)
    assert "3 images in a row found no memory" in str(rendered.error)
    assert [result.task.index for result in rendered.results] == [0, 1]


def test_what_a_batch_finished_before_it_was_given_up_is_kept(pipe: Any) -> None:
    short_of_memory(pipe, most=1)
    renderer = pipeline(pipe)
    images, calls = renderer.images, iter(range(8))

    def dropped_at_the_fifth_call(tasks: Any) -> Any:
        if next(calls) == 4:
            raise DroppedError
        return images(tasks)

    renderer.images = dropped_at_the_fifth_call  # type: ignore[method-assign]
    rendered = renderer.render(tasks(2) + tasks(4)[2:])
    assert isinstance(rendered.error, DroppedError)
    assert [type(result) for result in rendered.results] == [Image]


def test_the_manifest_may_allow_tiling(pipe: Any) -> None:
    decode, tried = pipe.vae.decode, []

    def decoding(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tried.append(pipe.vae.use_tiling)
        if not pipe.vae.use_tiling:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return decode(latents, *args, **kwargs)

    pipe.vae.decode = decoding
    (refused,) = pipeline(pipe).render(tasks(1)).results
    assert isinstance(refused, Failure)
    (made,) = pipeline(pipe, on_out_of_memory="tile").render(tasks(1)).results
    assert isinstance(made, Image)
    assert made.made["degraded"] == ["vae tiling"]
    assert tried == [False] * 4 + [True]  # twice each without tiling


# Case 9.
def test_tiling_is_for_the_image_that_needs_it(pipe: Any) -> None:
    sizes = [{**PARAMETERS, "height": side, "width": side} for side in (32, 96, 32, 96)]
    asked = [Task(i, i, "a cat", i, size) for i, size in enumerate(sizes)]
    plain = [image for task in asked for image in pipeline(pipe).render([task]).results]
    decode = pipe.vae.decode

    def decoding(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if latents.shape[-1] > 4 and not pipe.vae.use_tiling:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return decode(latents, *args, **kwargs)

    pipe.vae.decode = decoding
    renderer = pipeline(pipe, on_out_of_memory="tile")
    made = [image for task in asked for image in renderer.render([task]).results]
    for result, before in zip(made, plain, strict=True):
        assert isinstance(result, Image)
        assert isinstance(before, Image)
        is_large = result.made["height"] == 96
        assert result.made["degraded"] == ["vae tiling"] * is_large
        assert is_large or np.array_equal(result.pixels, before.pixels)
    assert (pipe.vae.use_tiling, pipe.vae.use_slicing) == (False, False)


def test_offload_is_refused_to_a_cpu_and_goes_to_the_ranks_own_device(pipe: Any) -> None:
    from runner.render.memory import Ladder

    ladder = Ladder(pipe, torch.device("cpu"), "offload")
    assert ladder.step()
    assert not ladder.step()
    assert ladder.taken == ["vae tiling"]
    asked: list[Any] = []  # case 17
    pipe.enable_model_cpu_offload = lambda device: asked.append(device)
    ladder = Ladder(pipe, torch.device("cuda", 1), "offload")
    assert ladder.step()
    assert asked == [torch.device("cuda", 1)]
    assert ladder.taken == ["model offload"]
    assert ladder.step()
    assert not ladder.step()
    assert ladder.taken == ["model offload", "vae tiling"]
    ladder.end_image()
    assert ladder.taken == ["model offload"]
    assert not pipe.vae.use_tiling
    assert ladder.step()
    assert ladder.taken == ["model offload", "vae tiling"]
    assert len(asked) == 1


# Case 32.
def test_an_image_that_is_not_finite_fails_alone(pipe: Any) -> None:
    poison_decoder(pipe, lambda latents: True)
    results = pipeline(pipe).render(tasks(3)).results
    assert [type(result) for result in results] == [Failure, Image, Image]
    assert isinstance(results[0], Failure)
    assert results[0].kind == "non-finite"


def test_a_decoder_known_to_overflow_is_run_in_float32(pipe: Any) -> None:
    pipe.to(torch.bfloat16)
    assert pipe.vae.config.force_upcast
    poison_decoder(pipe, lambda latents: latents.dtype != torch.float32)
    results = pipeline(pipe).render(tasks(3)).results
    steps = [result.made["degraded"] for result in results if isinstance(result, Image)]
    assert steps == [["vae float32"], [], []]
    assert pipe.vae.dtype == torch.bfloat16


def poison_decoder(pipe: Any, when: Any) -> None:
    """The first image of a decoded batch is not finite."""
    inner = pipe.vae.decoder.forward

    def forward(latents: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        image = inner(latents, *args, **kwargs).clone()
        if when(latents):
            image[0] = float("nan")
        return image

    pipe.vae.decoder.forward = forward


@pytest.mark.parametrize("found", ["black", "safety checker"])
def test_flagged_images(pipe: Any, found: str) -> None:
    call = type(pipe).__call__

    class Checked(type(pipe)):  # type: ignore[misc]
        @functools.wraps(call)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            output = call(self, *args, **kwargs)
            if found == "black":
                output.images[1] = 0
            else:
                output.nsfw_content_detected = [False, True]
            return output

    pipe.__class__ = Checked
    kept = pipeline(pipe).render(tasks(2)).results
    assert [r.made.get("flagged") for r in kept if isinstance(r, Image)] == [None, found]
    for policy, kind in (("skip", "skipped"), ("fail", "flagged")):
        results = pipeline(pipe, on_flagged=policy).render(tasks(2)).results
        assert isinstance(results[0], Image)
        assert isinstance(results[1], Failure)
        assert (results[1].kind, results[1].error) == (kind, f"flagged: {found}")


def test_skipped_images_are_no_failures_and_stay_skipped(tmp_path: Path) -> None:
    job = Job(tmp_path, 6, on_flagged="skip")
    first = job.run(hooks={"flag": ["prompt 3"]})
    assert first.code == 0
    assert "complete: 5 of 6 images" in first.err
    assert "1 skipped" in first.err
    assert [(f["index"], f["kind"]) for f in job.failures()] == [(3, "skipped")]
    again = job.run()
    assert again.code == 0
    assert len(job.images()) == 5
    job = Job(tmp_path, 6, on_flagged="keep")
    assert job.status() == 3
    assert job.run().code == 0
    assert len(job.images()) == 6


def test_flagged_images_that_were_kept_are_counted(tmp_path: Path) -> None:
    """Then the manifest rejects them: they count as such, and are not made again."""
    job = Job(tmp_path, 6)
    hooks = {"keep": ["prompt 0", "prompt 4"]}
    end = job.run(hooks=hooks)
    assert end.code == 0
    assert "complete: 6 of 6 images" in end.err
    assert "; 2 flagged (0, 4)" in end.err
    assert job.summary()["flagged"] == 2
    before = {path: path.stat().st_ino for path in job.output.glob("*.png")}
    for policy, code, kind in (("fail", 3, "flagged"), ("skip", 0, "skipped")):
        job = Job(tmp_path, 6, on_flagged=policy)
        assert job.status() == code
        assert job.run(hooks=hooks).code == code
        assert [(f["index"], f["kind"]) for f in job.failures()] == [(0, kind), (4, kind)]
        assert {f["error"] for f in job.failures()} == {"flagged: black"}
        assert [line["index"] for line in job.metadata()] == [1, 2, 3, 5]
        assert job.summary()["flagged"] == 0
    job = Job(tmp_path, 6)
    assert job.run(hooks=hooks).code == 0
    assert job.status() == 0
    assert before == {path: path.stat().st_ino for path in job.output.glob("*.png")}


def test_ranks_without_memory_end_the_job_as_failed(tmp_path: Path) -> None:
    job = Job(tmp_path, 12)
    end = job.run(processes=2, hooks={"give_up": ["prompt 4", "prompt 5"]})
    assert end.code == 1
    assert end.err.count("found no memory") >= 2
    assert job.status() == 3
    assert any("found no memory" in error for error in job.summary()["errors"])
