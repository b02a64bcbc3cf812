"""A model folder → a loaded diffusers pipeline; a batch of tasks → images."""

import contextlib
import inspect
import itertools
import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runner.errors import GaveUpError
from runner.launch.replica import Replica
from runner.launch.stop import Stop
from runner.model.text_memory import text_memory
from runner.model.truncation import truncation_of
from runner.plan import Task, is_text
from runner.render.compiled import is_compile_error, uncompile_blocks
from runner.render.memory import Ladder, free_memory, is_known_to_overflow, vae_in_float32
from runner.render.results import DroppedError, Failure, Image

__all__ = [
    "Pipeline",
]

log = logging.getLogger(__name__)

WITHOUT_MEMORY_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Rescue:
    """What the manifest says about images in trouble."""

    on_out_of_memory: str = "fail"
    on_flagged: str = "keep"


class Pipeline:
    """A diffusers pipeline on its device, called with one batch of tasks at a time."""

    def __init__(
        self,
        pipe: Any,
        device: torch.device,
        dtype: str,
        kind: str,
        stop: Stop,
        rescue: Rescue | None = None,
        replica: Replica | None = None,
        comes_again: Callable[[Task], bool] = lambda task: False,
        *,
        is_compiled: bool = False,
    ) -> None:
        self.pipe = pipe
        self.stop = stop
        self.replica = replica
        self.rescue = rescue or Rescue()
        self.ladder = Ladder(pipe, device, self.rescue.on_out_of_memory)
        self._without_memory = 0  # images in a row
        self._is_trial = False
        self._unsafe: list[bool] = []  # which images of the last call a safety checker found
        self.has_images = replica is None or replica.layout.is_leader
        self.about: dict[str, Any] = {"strategy": kind, "device": device.type, "dtype": dtype}
        if is_compiled:
            self.about["compiled"] = True
        accepted = inspect.signature(pipe.__call__).parameters
        self.texts = text_memory(pipe)
        self.comes_again = comes_again
        self.truncation = truncation_of(pipe)
        self._has_callback = "callback_on_step_end" in accepted

    def tries(self, tasks: Sequence[Task]) -> bool:
        """Make a batch and drop it: whether it could be made whole. Raises DroppedError at the next
        step once a stop was asked for."""
        attempt = self._attempt(tasks, ())
        self._is_trial = True
        try:
            while True:
                next(attempt)
        except StopIteration as end:
            return end.value is None
        finally:
            self._is_trial = False

    def render(
        self, tasks: Sequence[Task], degraded: Sequence[str] = ()
    ) -> Iterator[Image | Failure]:
        """A batch that fails as a whole is made again in parts: the others must not suffer. Only
        the leader of a replica yields; its other ranks compute along. Raises GaveUpError after
        several images in a row for which there was no memory."""
        for result in self._render(tasks, degraded):
            if isinstance(result, Failure) and result.kind == "non-finite":
                result = self._in_float32(result, degraded)
            self._count_memory(result)
            yield self._judged(result)

    def _render(self, tasks: Sequence[Task], degraded: Sequence[str]) -> Iterator[Image | Failure]:
        failure = yield from self._attempt(tasks, degraded)
        if failure is None:
            return
        is_memory = failure.kind == "out-of-memory"
        if len(tasks) == 1:
            if is_memory and self.ladder.step():
                yield from self._render(tasks, degraded)
            else:
                yield failure
            return
        log.warning("a batch failed (%s); its images are made in parts", failure.error)
        size = (len(tasks) + 1) // 2 if is_memory else 1
        for start in range(0, len(tasks), size):
            yield from self._render(tasks[start : start + size], _with(degraded, "batch split"))

    def _in_float32(self, failure: Failure, degraded: Sequence[str]) -> Image | Failure:
        """The image once more, alone and decoded in float32, where its VAE is known for it."""
        if self.replica is not None or not is_known_to_overflow(self.pipe):
            return failure  # the other ranks of a replica do not know of it
        with vae_in_float32(self.pipe):
            results = [*self._attempt([failure.task], _with(degraded, "vae float32"))]
        return results[0] if results else failure

    def _count_memory(self, result: Image | Failure) -> None:
        is_without = isinstance(result, Failure) and result.kind == "out-of-memory"
        self._without_memory = self._without_memory + 1 if is_without else 0
        if self._without_memory == WITHOUT_MEMORY_IN_A_ROW:
            raise GaveUpError(
                f"{WITHOUT_MEMORY_IN_A_ROW} images in a row found no memory; use smaller images, "
                f"on_out_of_memory: offload, or a strategy that spreads the model"
            )

    def _judged(self, result: Image | Failure) -> Image | Failure:
        """As the manifest says for a black image, or one that the safety checker found."""
        reason = result.made.get("flagged") if isinstance(result, Image) else None
        if reason is None or self.rescue.on_flagged == "keep":
            return result
        kind = "skipped" if self.rescue.on_flagged == "skip" else "flagged"
        return Failure(result.task, kind, f"flagged: {reason}")

    def _attempt(
        self, tasks: Sequence[Task], degraded: Sequence[str]
    ) -> Generator[Image | Failure, None, Failure | None]:
        """Yield the batch's images; return a Failure where the call itself failed. Where blocks do
        not compile, no other image would fare better: all are made without, from now on."""
        failure = yield from self._call(tasks, degraded)
        if failure is None or failure.kind != "compile":
            return failure
        if self.stop.requested and self.replica is None:
            raise DroppedError  # the compiler, too, was asked to stop
        reason = failure.error.splitlines()[0][:200]
        log.warning("blocks do not compile (%s); going on without", reason)
        uncompile_blocks(self.pipe)
        del self.about["compiled"]
        self.ladder.taken.append("not compiled")
        return (yield from self._call(tasks, degraded))

    def _call(
        self, tasks: Sequence[Task], degraded: Sequence[str]
    ) -> Generator[Image | Failure, None, Failure | None]:
        """Yield the batch's images; return a Failure where the call itself failed.

        The exception is gone when this returns: its frames would keep the batch's tensors alive.
        """
        start = time.perf_counter()
        failure = None
        self.truncation.clear()
        try:
            images = self.images(tasks)
            if self.has_images:
                pixels, finite = to_pixels(images)
        except DroppedError:
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            kind = kind_of(error, is_compiled="compiled" in self.about)
            failure = Failure(tasks[0], kind, words, traceback.format_exc())
            if is_fatal(error):
                raise
        if self.replica is not None:
            verdict = self.replica.agree_on((failure.kind, failure.error) if failure else None)
            if not self.has_images:
                return Failure(tasks[0], *verdict) if verdict else None
        if failure is None:
            seconds = round((time.perf_counter() - start) / len(tasks), 4)
            steps = [*degraded, *self.ladder.taken]
            how = {"batch_size": len(tasks), "degraded": steps, "seconds": seconds}
            for row, (task, image, is_finite, is_unsafe) in enumerate(
                zip(tasks, pixels, finite, self._unsafe, strict=True)
            ):
                if not is_finite:
                    yield Failure(task, "non-finite", "the image has values that are not finite")
                    continue
                height, width = image.shape[:2]
                made = {"width": width, "height": height, **self.about, **how}
                if is_unsafe or not image[..., :3].any():
                    made["flagged"] = "safety checker" if is_unsafe else "black"
                if truncated := self.truncation.of(row):
                    made["truncated"] = truncated
                yield Image(task, image, made)
            return None
        free_memory()
        return failure

    def images(self, tasks: Sequence[Task]) -> Any:
        """Float images (B, C, H, W) from 0 to 1, on the pipeline's device; on a rank that does not
        lead its replica perhaps nothing.

        The noise comes from one CPU generator an image, so that it depends on the image's seed
        alone: not on the batch, the rank, the number of GPUs or their kind.
        """
        with self._remembering(tasks):
            output = self.pipe(**self._arguments(tasks))
        images = getattr(output, "images", None)
        if not self.has_images:
            return images
        if not isinstance(images, torch.Tensor) or images.ndim != 4 or len(images) != len(tasks):
            raise TypeError(f"{type(self.pipe).__name__} did not return one image a prompt")
        unsafe = getattr(output, "nsfw_content_detected", None) or [False] * len(tasks)
        self._unsafe = [bool(one) for one in unsafe]
        return images

    def _arguments(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """Of the pipeline call."""
        generators = [torch.Generator("cpu").manual_seed(task.seed) for task in tasks]
        single = len(tasks) == 1
        arguments = dict(tasks[0].parameters)
        for name in [] if single else filter(is_text, tasks[0].parameters):
            arguments[name] = [task.parameters[name] for task in tasks]
        if self._has_callback:
            arguments["callback_on_step_end"] = self._on_step(time.monotonic())
        return {
            **arguments,
            "prompt": tasks[0].prompt if single else [task.prompt for task in tasks],
            "generator": generators[0] if single else generators,
            "output_type": "pt",
        }

    def prepare(self, batches: Sequence[Sequence[Task]]) -> None:
        """Batches that will be rendered next, for a pipeline that makes several at once."""
        if hasattr(self.pipe, "prepare"):
            with self._remembering(itertools.chain.from_iterable(batches)):
                self.pipe.prepare([self._arguments(tasks) for tasks in batches])

    def _remembering(self, tasks: Iterable[Task]) -> contextlib.AbstractContextManager[None]:
        return self.texts.keeping(returning=any(map(self.comes_again, tasks)))

    def _on_step(self, start: float) -> Any:
        def is_too_late(pipe: Any, step: int) -> bool:
            if not self.stop.requested or self._is_trial:
                return self.stop.requested  # nobody waits for a trial
            a_step = (time.monotonic() - start) / (step + 1)
            steps_left = getattr(pipe, "num_timesteps", step + 1) - step - 1
            return a_step * (steps_left + 1) > self.stop.left_s()  # one step more for the decoder

        def on_step(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
            drops = is_too_late(pipe, step)
            if self.replica is not None:
                drops = self.replica.drops(step, drops)
            if drops:
                raise DroppedError
            return values

        return on_step


def _with(degraded: Sequence[str], step: str) -> list[str]:
    return [*degraded, step] if step not in degraded else [*degraded]


def to_pixels(images: torch.Tensor) -> tuple[NDArray[np.uint8], list[bool]]:
    """(B, C, H, W) from 0 to 1 → bytes (B, H, W, C), rounded as diffusers does for PIL images, and
    which of them are finite. Converted on the device: a quarter of the bytes to move."""
    finite = torch.isfinite(images).flatten(1).all(1)
    scaled = (torch.nan_to_num(images.float()) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels = scaled.permute(0, 2, 3, 1).cpu().numpy()
    return pixels, finite.tolist()


def kind_of(error: Exception, *, is_compiled: bool) -> str:
    """Of a failure; "compile" is for the pipeline alone, which tries again."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out-of-memory"
    return "compile" if is_compiled and is_compile_error(error) else "error"


def is_fatal(error: Exception) -> bool:
    """Whether the process can make no more images: a device error poisons every later call."""
    return isinstance(error, torch.AcceleratorError)
