"""A loaded diffusers pipeline: a batch of tasks → images."""

import contextlib
import inspect
import itertools
import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runner.errors import GaveUpError
from runner.launch.device_errors import is_fatal, is_out_of_memory
from runner.launch.devices import free_memory
from runner.launch.replica import Replica
from runner.launch.stop import Stop
from runner.manifest.input_images import InputFaultError, InputFiles, inputs_of, names_input
from runner.model.batching import one_at_a_time, takes_references
from runner.model.signature import as_call_values
from runner.model.text_memory import text_memory
from runner.model.truncation import truncation_of
from runner.plan import Task, is_text
from runner.render.adapters import Adapters
from runner.render.compiled import is_compile_error, uncompile_blocks
from runner.render.exactness import LORAS, device_facts, exactness_of, limits_of
from runner.render.inputs import InputImages
from runner.render.memory import Ladder, is_known_to_overflow, vae_in_float32
from runner.render.noise import Noise, SharedNoiseError
from runner.render.picture import as_tensor, flags_of, output_type_of, to_pixels, wrong_size
from runner.render.results import DroppedError, Failure, Image, Rendered, Result
from runner.render.schedulers import Schedulers
from runner.strategies import StrategyBase

__all__ = ["Pipeline"]

log = logging.getLogger(__name__)

STEPS = "num_inference_steps"
WITHOUT_MEMORY_IN_A_ROW = 3
NOT_FINITE = "the image has values that are not finite"
INVALID_BYTE = "invalid value encountered in cast"  # NumPy's words for a byte of what is no number


@dataclass(frozen=True, slots=True)
class _Part:
    """Tasks of one pipeline call, and what was done to them so far."""

    tasks: Sequence[Task]
    degraded: Sequence[str]
    is_again: bool = False  # as it was, after memory was freed

    def halves(self, size: int) -> list["_Part"]:
        """Smaller parts of up to `size` tasks each."""
        steps = _with(self.degraded, "batch split")
        starts = range(0, len(self.tasks), size)
        return [_Part(self.tasks[start : start + size], steps) for start in starts]

    def singles(self) -> list["_Part"]:
        """One by one, as planned for models whose images cannot be made otherwise."""
        return [_Part([task], self.degraded) for task in self.tasks]


class Pipeline:
    """A diffusers pipeline on its device, called with one batch of tasks at a time."""

    def __init__(
        self,
        pipe: Any,
        *,
        device: torch.device,
        dtype: str,
        strategy: StrategyBase,
        stop: Stop,
        on_out_of_memory: str = "fail",
        on_flagged: str = "keep",
        replica: Replica | None = None,
        inputs: InputFiles | None = None,
        comes_again: Callable[[Task], bool] = lambda task: False,
        is_compiled: bool = False,
    ) -> None:
        """`replica` is None where one rank makes an image alone; `comes_again` says of which tasks
        a text encoder's output is worth keeping."""
        self.pipe = pipe
        self.stop = stop
        self.replica = replica
        self.on_flagged = on_flagged
        self.ladder = Ladder(pipe, device, on_out_of_memory)
        self._without_memory = 0  # images in a row
        self._helps_to_free = True
        self._is_trial = False
        inner = getattr(pipe, "pipe", pipe)  # diffusers' own, where a strategy made one around it
        self.output_type = output_type_of(inner)
        self.inputs = InputImages(inputs or InputFiles(None))
        self.noise = Noise(inner, tuple(inner.components), device)
        self._around: Callable[[Any], contextlib.AbstractContextManager[None]] = self.noise.of
        if hasattr(pipe, "around_call"):  # it makes the calls in its own time
            pipe.around_call, self._around = self.noise.of, contextlib.nullcontext
        self.schedulers = Schedulers(inner, self.noise.watch)
        self._class = type(inner).__name__
        self._shared_noise: set[str] = set()  # schedulers that were found to draw outside
        self._takes_references = takes_references(self._class)
        self._unsafe: list[bool] = []  # which images of the last call a safety checker found
        self.has_images = replica is None or replica.layout.is_leader
        self.about: dict[str, Any] = {
            "strategy": strategy.kind,
            **device_facts(device),
            "dtype": dtype,
            "scheduler": self.schedulers.name_of(None),
        }
        if is_compiled:
            self.about["compiled"] = True
        self.limits = limits_of(inner, strategy)
        accepted = inspect.signature(pipe.__call__).parameters
        self._usual_steps = getattr(accepted.get(STEPS), "default", None)
        self.texts = text_memory(pipe)
        self.adapters = Adapters(inner, self.texts)
        self.comes_again = comes_again
        self.truncation = truncation_of(pipe)
        self._has_callback = "callback_on_step_end" in accepted

    def tries(self, tasks: Sequence[Task]) -> bool:
        """Make a batch and drop it: whether it could be made whole. Raises DroppedError at the next
        step once a stop was asked for."""
        if self._are_singles(tasks) and len(tasks) > 1:
            return False
        self._is_trial = True
        try:
            return not isinstance(self._attempt(_Part(tasks, ())), Failure)
        finally:
            self._is_trial = False

    def render(self, tasks: Sequence[Task], degraded: Sequence[str] = ()) -> Rendered:
        """Make a batch. One that fails as a whole is made again in parts: the others must not
        suffer. Only the leader of a replica has results; its other ranks compute along. The error
        is a GaveUpError after several images in a row for which there was no memory."""
        results: list[Result] = []
        whole = _Part(tasks, degraded)
        # Still to make, in order.
        parts = whole.singles() if self._are_singles(tasks) else [whole]
        try:
            while parts:
                part = parts.pop(0)
                made = self._attempt(part)
                if isinstance(made, Failure) and (smaller := self._again(part, made)):
                    parts[:0] = smaller
                    continue
                self._helps_to_free |= part.is_again and not isinstance(made, Failure)
                for result in [made] if isinstance(made, Failure) else made:
                    results.append(self._judged(self._with_memory(result, degraded)))
                self.ladder.end_image()
        except Exception as error:
            return Rendered(results, error)
        finally:
            self.ladder.end_image()
        return Rendered(results)

    def expect(self, tasks: Sequence[Task], later: Sequence[Task]) -> None:
        """Read the input images of the tasks that are rendered next, and of those after them."""
        self.inputs.expect(tasks, later)

    def _are_singles(self, tasks: Sequence[Task]) -> bool:
        """Whether each image of a batch has a call of its own. A call takes one input image a
        prompt: a list is of one prompt."""
        parameters = tasks[0].parameters
        has_several = any(isinstance(parameters[name], list) for name, _ in inputs_of(parameters))
        is_reference = self._takes_references and names_input(parameters)
        return self._is_one_at_a_time(tasks) or has_several or is_reference

    def _scheduler_of(self, tasks: Sequence[Task]) -> str:
        """The class of the scheduler that a batch is made with."""
        return self.schedulers.name_of(tasks[0].parameters.get("scheduler"))

    def _is_one_at_a_time(self, tasks: Sequence[Task]) -> bool:
        scheduler = self._scheduler_of(tasks)
        return scheduler in self._shared_noise or bool(one_at_a_time(self._class, scheduler))

    def _again(self, part: _Part, failure: Failure) -> list[_Part]:
        """What to make instead of a part that failed; nothing where the failure stands."""
        is_memory = failure.kind == "out-of-memory"
        if is_memory and self._helps_to_free:
            self._helps_to_free = False  # until it is seen to
            return [_Part(part.tasks, part.degraded, is_again=True)]
        if len(part.tasks) == 1:
            return [part] if is_memory and self.ladder.step() else []
        if failure.kind == "shared-noise":
            # On every rank of a replica, as they agreed on it.
            self._shared_noise.add(self._scheduler_of(part.tasks))
            log.warning("%s; the images are made one at a time", failure.error)
            return part.singles()
        log.warning("a batch failed (%s); its images are made in parts", failure.error)
        return part.halves((len(part.tasks) + 1) // 2 if is_memory else 1)

    def _with_memory(self, result: Result, degraded: Sequence[str]) -> Result:
        """The result, decoded once more where half precision was too small for it. Raises
        GaveUpError."""
        if isinstance(result, Failure) and result.kind == "non-finite":
            result = self._in_float32(result, degraded)
        is_without = isinstance(result, Failure) and result.kind == "out-of-memory"
        self._without_memory = self._without_memory + 1 if is_without else 0
        if self._without_memory == WITHOUT_MEMORY_IN_A_ROW:
            raise GaveUpError(
                f"{WITHOUT_MEMORY_IN_A_ROW} images in a row found no memory; use smaller images, "
                f"on_out_of_memory: offload, or a strategy that spreads the model"
            )
        return result

    def _in_float32(self, failure: Failure, degraded: Sequence[str]) -> Result:
        """The image once more, alone and decoded in float32, where its VAE is known for it."""
        if self.replica is not None or not is_known_to_overflow(self.pipe):
            return failure  # the other ranks of a replica do not know of it
        with vae_in_float32(self.pipe):
            made = self._attempt(_Part([failure.task], _with(degraded, "vae float32")))
        return failure if isinstance(made, Failure) else made[0]

    def _judged(self, result: Result) -> Result:
        """As the manifest says for a black image, or one that the safety checker found."""
        reason = result.made.get("flagged") if isinstance(result, Image) else None
        if reason is None or self.on_flagged == "keep":
            return result
        kind = "skipped" if self.on_flagged == "skip" else "flagged"
        return Failure(result.task, kind, f"flagged: {reason}")

    def _attempt(self, part: _Part) -> list[Result] | Failure:
        """The part's results, or the failure of the call as a whole. Where blocks do not compile,
        no other image would fare better: all are made without, from now on."""
        made = self._call(part)
        if not isinstance(made, Failure) or made.kind != "compile":
            return made
        if self.stop.requested and self.replica is None:
            raise DroppedError  # the compiler, too, was asked to stop
        reason = made.error.splitlines()[0][:200]
        log.warning("blocks do not compile (%s); going on without", reason)
        uncompile_blocks(self.pipe)
        del self.about["compiled"]
        self.ladder.kept.append("not compiled")
        return self._call(part)

    def _call(self, part: _Part) -> list[Result] | Failure:
        """The part's results, or the failure of the call as a whole.

        The exception is gone when this returns: its frames would keep the batch's tensors alive.
        """
        start = time.perf_counter()
        tasks, failure = part.tasks, None
        self.truncation.clear()
        try:
            images = self.images(tasks)
            if self.has_images:
                pixels, finite = to_pixels(images)
        except DroppedError:
            raise
        except Exception as error:
            if is_fatal(error):
                raise
            kind = kind_of(error, is_compiled="compiled" in self.about)
            words = NOT_FINITE if kind == "non-finite" else f"{type(error).__name__}: {error}"
            words = str(error) if kind == "input" else words
            failure = Failure(tasks[0], kind, words, traceback.format_exc())
        if self.replica is not None:
            verdict = self.replica.agree_on((failure.kind, failure.error) if failure else None)
            if not self.has_images:
                return Failure(tasks[0], *verdict) if verdict else []
        if failure is not None:
            free_memory()
            return failure
        seconds = round((time.perf_counter() - start) / len(tasks), 4)
        steps = [*part.degraded, *self.ladder.taken]
        how = {"batch_size": len(tasks), "degraded": steps, "seconds": seconds}
        return [
            self._result(row, task, pixels[row], how)
            if finite[row]
            else Failure(task, "non-finite", NOT_FINITE)
            for row, task in enumerate(tasks)
        ]

    def _result(
        self, row: int, task: Task, pixels: NDArray[np.uint8], how: Mapping[str, Any]
    ) -> Result:
        """An image of the last call, with its record, if it is the one that was asked for."""
        if wrong := wrong_size(task, pixels):
            return Failure(task, "wrong-size", wrong)
        height, width = pixels.shape[:2]
        made = {"width": width, "height": height, **self.about}
        made["scheduler"] = self._scheduler_of([task])
        if steps := task.parameters.get(STEPS) or self._usual_steps:
            made["steps"] = steps
        limits = [*self.limits, *([LORAS] if "loras" in task.parameters else [])]
        made |= exactness_of(
            limits, how["batch_size"], how["degraded"], is_compiled="compiled" in self.about
        )
        made |= how  # the seconds come last: see folder/done_images.py
        if self._unsafe[row] or not pixels[..., :3].any():
            made["flagged"] = "safety checker" if self._unsafe[row] else "black"
        if truncated := self.truncation.of(row):
            made["truncated"] = truncated
        return Image(task, pixels, made)

    def images(self, tasks: Sequence[Task]) -> Any:
        """Images (B, C, H, W), floats from 0 to 1 or bytes, where the pipeline left them; on a rank
        that does not lead its replica perhaps nothing.

        The noise comes from one CPU generator an image, so that it depends on the image's seed
        alone: not on the batch, the rank, the number of GPUs or their kind.
        """
        self.schedulers.use(tasks[0].parameters.get("scheduler"))
        self.adapters.use(tasks[0].parameters.get("loras", {}))
        self.noise.is_shared = False
        arguments = self._arguments(tasks)
        around = self._around(arguments["generator"])
        with self._remembering(tasks), around, _not_finite_is_an_error():
            output = self.pipe(**arguments)
        if len(tasks) > 1 and self.noise.is_shared:
            raise SharedNoiseError
        images = getattr(output, "images", None)
        if not self.has_images:
            return images
        self._unsafe = flags_of(output, len(tasks))
        return as_tensor(images, len(tasks))

    def _arguments(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """Of the pipeline call."""
        generators = [torch.Generator("cpu").manual_seed(task.seed) for task in tasks]
        single = len(tasks) == 1
        arguments = as_call_values(tasks[0].parameters)
        for name in [] if single else filter(is_text, tasks[0].parameters):
            if arguments[name] is not None:  # then it is null in all of a batch
                arguments[name] = [task.parameters[name] for task in tasks]
        if self._has_callback:
            arguments["callback_on_step_end"] = self._on_step(time.monotonic())
        return {
            **arguments,
            **self.inputs.of_call(tasks),
            "prompt": tasks[0].prompt if single else [task.prompt for task in tasks],
            "generator": generators[0] if single else generators,
            "output_type": self.output_type,
        }

    def prepare(self, batches: Sequence[Sequence[Task]]) -> None:
        """Batches that will be rendered next, for a pipeline that makes several at once."""
        if not hasattr(self.pipe, "prepare"):
            return
        self.schedulers.use(batches[0][0].parameters.get("scheduler"))  # of all: see settle
        if self._is_one_at_a_time(batches[0]):
            batches = [[task] for tasks in batches for task in tasks]
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


@contextlib.contextmanager
def _not_finite_is_an_error() -> Iterator[None]:
    """Pictures that a pipeline made itself are bytes. NumPy notices what was not finite before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", INVALID_BYTE, RuntimeWarning)
        yield


def kind_of(error: Exception, *, is_compiled: bool) -> str:
    """Of a failure; "compile" and "shared-noise" are for the pipeline alone, which tries again."""
    if is_out_of_memory(error):
        return "out-of-memory"
    if isinstance(error, RuntimeWarning) and INVALID_BYTE in str(error):
        return "non-finite"
    if isinstance(error, SharedNoiseError):
        return "shared-noise"
    if isinstance(error, InputFaultError):
        return "input"
    return "compile" if is_compiled and is_compile_error(error) else "error"
