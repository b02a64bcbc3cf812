"""What tests change in a rank before it runs: faults, and a look at float images."""

import os
import time

import numpy as np


def keep_floats() -> None:
    """Save each float image beside the manifest, as `float-<index>.npy`."""
    from runner.render.pipeline import Pipeline

    images = Pipeline.images

    def keep(self, tasks):
        found = images(self, tasks)
        if self.replica is None or self.replica.layout.is_leader:
            for task, image in zip(tasks, found, strict=True):
                np.save(f"float-{task.index}.npy", image.cpu().numpy())
        return found

    Pipeline.images = keep


def fail_before() -> None:
    """Every rank fails for the prompt "bad", before the pipeline call."""
    _around(lambda: _raise(), None)


def fail_after() -> None:
    _around(None, lambda: _raise())


def fail_inside_on_last_rank() -> None:
    """The last rank fails at a denoising step, while the others go on to the next collective."""
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        _fail_inside()


def fail_inside_on_first_rank() -> None:
    if os.environ["RANK"] == "0":
        _fail_inside()


def die_inside_on_last_rank() -> None:
    """As the kernel does when memory runs out."""
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        _fail_inside(lambda: os.kill(os.getpid(), 9))


def die_at_third_image() -> None:
    """As after kill -9, between two images."""
    from runner.render.pipeline import Pipeline

    images, calls = Pipeline.images, []

    def die(self, tasks):
        calls.append(tasks)
        if len(calls) == 3:
            os.kill(os.getpid(), 9)
        return images(self, tasks)

    Pipeline.images = die


def slow_steps() -> None:
    from runner.render.pipeline import Pipeline

    on_step = Pipeline._on_step

    def slow(self, start):
        inner = on_step(self, start)

        def step(*arguments):
            time.sleep(0.3)
            return inner(*arguments)

        return step

    Pipeline._on_step = slow


def _fail_inside(act=None) -> None:
    from runner.render.pipeline import Pipeline

    images, on_step = Pipeline.images, Pipeline._on_step

    def note(self, tasks):
        self.is_bad = any(task.prompt == "bad" for task in tasks)
        return images(self, tasks)

    def fail(self, start):
        inner = on_step(self, start)

        def step(*arguments):
            if self.is_bad:
                (act or _raise)()
            return inner(*arguments)

        return step

    Pipeline.images, Pipeline._on_step = note, fail


def _around(before, after) -> None:
    from runner.render.pipeline import Pipeline

    images = Pipeline.images

    def around(self, tasks):
        is_bad = any(task.prompt == "bad" for task in tasks)
        if is_bad and before:
            before()
        found = images(self, tasks)
        if is_bad and after:
            after()
        return found

    Pipeline.images = around


def _raise() -> None:
    raise RuntimeError("a test's fault")


def say_places() -> None:
    """Print where each component lies."""
    from runner.strategies import DeviceMap

    load = DeviceMap.load

    def say(self, source, device, world):
        pipe = load(self, source, device, world)
        for name, component in pipe.components.items():
            if places := getattr(component, "hf_device_map", None):
                print(name, places)
        return pipe

    DeviceMap.load = say


def copy_weights() -> None:
    """Weights in memory of their own instead of mapped files: as aligned as those from disk are.
    Kernels are picked by alignment, so this can change the last bit of an image."""
    from runner.strategies import DataParallel

    load = DataParallel.load

    def copied(self, source, device, world):
        import torch

        pipe = load(self, source, device, world)
        for component in pipe.components.values():
            if isinstance(component, torch.nn.Module):
                for weight in [*component.parameters(), *component.buffers()]:
                    weight.data = weight.data.clone()
        return pipe

    DataParallel.load = copied


def count_loads() -> None:
    """Print the name of each component that is loaded by itself."""
    from runner.render.load import ModelSource

    component = ModelSource.component

    def say(self, name, **arguments):
        print("load", name)
        return component(self, name, **arguments)

    ModelSource.component = say


def fail_encoding() -> None:
    from diffusers import FluxPipeline

    encode = FluxPipeline.encode_prompt

    def fail(self, prompt, *given, **named):
        if prompt == "bad":
            _raise()
        return encode(self, prompt, *given, **named)

    FluxPipeline.encode_prompt = fail


def wrong_images() -> None:
    """A replica that computes something else: what --self-check is for."""
    from runner.strategies import ContextParallel

    load = ContextParallel.load

    def wrong(self, source, device, world):
        pipe = load(self, source, device, world)
        forward = pipe.transformer.forward
        pipe.transformer.forward = lambda *given, **named: (forward(*given, **named)[0] * 1.05,)
        return pipe

    ContextParallel.load = wrong


def say_weights() -> None:
    """Print the bytes of weights that this rank holds."""
    from runner.strategies import TensorParallel

    load = TensorParallel.load

    def say(self, source, device, world):
        pipe = load(self, source, device, world)
        total = 0
        for component in pipe.components.values():
            for weight in getattr(component, "parameters", tuple)():
                # Its own numbers: on the CPU a slice may be a view of the mapped file.
                local = weight.to_local() if hasattr(weight, "to_local") else weight
                total += local.numel() * local.itemsize
        print("bytes", total)
        return pipe

    TensorParallel.load = say


def keep_compiled_code() -> None:
    """Compiled code lies in a folder beside the manifest's; say what became of it."""
    from runner.render.pipeline import Pipeline

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("../compiled")
    images = Pipeline.images

    def say(self, tasks):
        found = images(self, tasks)
        from torch._dynamo.utils import counters

        blocks, code = counters["stats"]["unique_graphs"], counters["inductor"]
        kept, made = code["fxgraph_cache_hit"], code["fxgraph_cache_miss"]
        traced = counters["aot_autograd"]["autograd_cache_miss"]
        print(f"blocks {blocks}, kept {kept}, compiled {made}, traced {traced}")
        return found

    Pipeline.images = say


def few_shapes() -> None:
    from runner.render import compiled

    compiled.MOST_SHAPES = 1


def lose_compilers() -> None:
    os.environ["PATH"] = "/nowhere"


def break_compiler() -> None:
    """A compiler that answers when it is asked for its version, and fails at work."""
    from pathlib import Path

    from torch._inductor import config

    compiler = Path("compiler").absolute()
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\n')
    compiler.chmod(0o755)
    config.cpp.cxx = (None, str(compiler))


def impatient() -> None:
    """Failures of one rank are given up on sooner, so that tests are."""
    from runner.launch import replica

    replica.PATIENCE_S = 3.0


def stop_soon() -> None:
    """Ask every rank to stop two seconds after its first step, as a signal to the launcher does."""
    import signal
    import threading

    from runner.render.pipeline import Pipeline

    on_step = Pipeline._on_step

    def first(self, start):
        if not hasattr(self, "told"):
            self.told = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM))
            self.told.start()
        return on_step(self, start)

    Pipeline._on_step = first


def proven() -> None:
    """Every pipeline counts as proven: no first image is compared by the runner itself."""
    from runner.prepare import proof

    proof.is_proven = lambda *_: True


def unproven() -> None:
    """No pipeline is proven right by a test."""
    from runner.prepare import proof

    proof.is_proven = lambda *_: False


def spoil_on_last_rank() -> None:
    if os.environ["RANK"] != str(int(os.environ["WORLD_SIZE"]) - 1):
        return
    from runner.render.pipeline import Pipeline

    images = Pipeline.images
    Pipeline.images = lambda self, tasks: (images(self, tasks) + 0.02).clamp(0, 1)


def refused_last() -> None:
    """The last rank hears of the refusal after rank 0 has given the folder back."""
    if os.environ["RANK"] == "0":
        return
    from runner import run

    note = run.note_refusal

    def late(folder, error, owned, part):
        while owned.path.exists():
            time.sleep(0.05)
        note(folder, error, owned, part)

    run.note_refusal = late
