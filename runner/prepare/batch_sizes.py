"""`batch_size: auto` → how many images of a size are best made at once, found by trying.

Sizes are tried from the largest image down. The batch is doubled until there is no memory, or two
doublings made no more images per second. A size of about as many pixels takes the same. What is
being tried is noted in a file: where two launches die of it (the kernel ran out of memory; one may
have been preempted), the next tries less.
"""

import dataclasses
import json
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InterruptedRunError
from runner.launch.devices import set_device
from runner.launch.stop import Stop
from runner.manifest.schema import Manifest
from runner.model import files as model
from runner.plan import Plan, Task, pixels_of, size_name
from runner.prepare.rank import Rank
from runner.render.results import DroppedError, Renderer
from runner.say import say
from runner.units import counted

__all__ = ["find_batch_sizes", "probe"]

STEPS = 4  # of a trial, at most: enough to tell what a step costs beside the decoder
GAIN = 1.05  # in images per second, below which a larger batch is not worth its memory
LARGEST = 32
PATIENCE = 2  # doublings that may gain nothing: one may have been measured badly
ALIKE = 0.8  # of the pixels of a size that was tried
BATCHES_A_REPLICA = 8  # at least, so that the replicas end at about the same time
SHORT_S = 0.5  # trials shorter than this are repeated
REPEATS = 3
CANDIDATES = 3  # tasks of a size: one that fails of itself says nothing about batches
DEADLY = 2  # launches that died of a batch


def find_batch_sizes(
    rank: Rank, plan: Plan, manifest: Manifest
) -> tuple[dict[str, int], Renderer | None]:
    """Size → images of one call, and the pipeline that they were tried on."""
    strategy, spec, world, stop = manifest.strategy, manifest.model, rank.world, rank.stop
    if not strategy.tries_batches:
        return {"default": 1}, None
    from runner.render.load import load

    with stop.loading():
        folder = model.local_folder(spec) or model.download(spec)
        device = set_device(world, share=strategy.shares_node)
        renderer = load(
            manifest,
            folder,
            device=device,
            world=world,
            stop=stop,
            comes_again=plan.comes_again,
            inputs=plan.inputs,
            only_loras=plan.only_loras,
        )
    replicas = strategy.layout(world).replicas * (rank.job.part[1] if rank.job.part else 1)
    note, warms_up = rank.folder.trial, manifest.compile
    return probe(renderer, plan.tasks(), replicas, stop, note, warms_up=warms_up), renderer


def probe(
    renderer: Renderer,
    tasks: Iterable[Task],
    replicas: int,
    stop: Stop,
    note: Path,
    *,
    warms_up: bool = False,
) -> dict[str, int]:
    """Size → images of one call, for the sizes that were tried; see `plan.batch_limit`. `note` is
    the file of what is being tried. With `warms_up` the first batch of a size is not timed: it
    compiles.

    Raises InterruptedRunError where the job is asked to stop meanwhile.
    """
    candidates, counts = _sizes(tasks)
    share = sum(counts.values()) // (BATCHES_A_REPLICA * replicas) if replicas > 1 else LARGEST
    trial = _Trial(renderer, stop, _Note(note), warms_up)
    found: dict[str, int] = {}
    try:
        for alike in _groups(counts):
            most = min(LARGEST, share, max(counts[name] for name in alike))
            found[alike[0]] = trial.best(candidates[alike[0]], most, alike)
    except DroppedError:
        raise _stopped() from None
    finally:
        note.unlink(missing_ok=True)
    return found


class _Note:
    """The file of what is being tried, which a launch that dies of it leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text() if stat.S_ISREG(path.lstat().st_mode) else ""
            values = json.loads(text)
            self.size, self.images = str(values["size"]), int(values["images"])
            self.launches = int(values["launches"])
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.size, self.images, self.launches = "", 0, 0

    def most(self, alike: Sequence[str]) -> int:
        """How many images of these sizes may be tried at once."""
        if self.size not in alike or self.launches < DEADLY:
            return LARGEST
        tried = f"{counted(self.images, 'image')} of {self.size} at once"
        _tell(f"{self.launches} launches died while they tried {tried}; trying fewer")
        return self.images - 1

    def write(self, size: str, images: int) -> None:
        is_same = (size, images) == (self.size, self.images)
        launches = self.launches + 1 if is_same else 1
        self.path.write_text(json.dumps({"size": size, "images": images, "launches": launches}))


def _sizes(tasks: Iterable[Task]) -> tuple[dict[str, list[Task]], dict[str, int]]:
    """The first tasks of each size, and how many images have it."""
    first: dict[str, list[Task]] = {}
    counts: dict[str, int] = {}
    for task in tasks:
        name = size_name(task.parameters)
        counts[name] = counts.get(name, 0) + 1
        if counts[name] <= CANDIDATES:
            first.setdefault(name, []).append(task)
    return first, counts


def _groups(names: Iterable[str]) -> list[list[str]]:
    """Sizes that are tried as one, from large to small; the first of each is its largest."""
    groups: list[list[str]] = []
    for name in sorted(names, key=lambda name: (-pixels_of(name), name)):
        if groups and pixels_of(name) >= ALIKE * pixels_of(groups[-1][0]):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _short(task: Task) -> Task:
    """The task in a few steps, where its number of steps is its own to set."""
    parameters = dict(task.parameters)
    if not parameters.keys() & {"timesteps", "sigmas"}:
        steps = parameters.get("num_inference_steps") or STEPS
        parameters["num_inference_steps"] = min(steps, STEPS)
    return dataclasses.replace(task, parameters=parameters)


@dataclass(frozen=True, slots=True)
class _Trial:
    renderer: Renderer
    stop: Stop
    note: _Note
    warms_up: bool

    def best(self, tasks: Iterable[Task], most: int, alike: Sequence[str]) -> int:
        """How many images of such a task are best made at once, up to `most`."""
        most = min(most, self.note.most(alike))
        if most < 2:
            return 1
        name = alike[0]
        _tell(f"trying how many images of {name} are best made at once")
        # The first call also prepares what later ones reuse.
        task = next((task for task in map(_short, tasks) if self.renderer.tries([task])), None)
        if task is None:
            _tell(f"no image of {name} could be made; one at a time")
            return 1
        best, best_rate, size = 1, self._rate(task, 1), 2
        while size <= min(most, best * 2**PATIENCE):
            self.note.write(name, size)
            if self.warms_up and not self.renderer.tries([task] * size):
                break
            rate = self._rate(task, size)
            if not rate:
                break
            if rate >= GAIN * best_rate:
                best, best_rate = size, rate
            size *= 2
        return best

    def _rate(self, task: Task, size: int) -> float:
        """Images per second in batches of this size; 0 where such a batch cannot be made."""
        fastest, spent = float("inf"), 0.0
        for _ in range(REPEATS):
            if self.stop.requested:
                raise _stopped()
            start = time.perf_counter()
            if not self.renderer.tries([task] * size):
                return 0.0
            seconds = time.perf_counter() - start
            fastest, spent = min(fastest, seconds), spent + seconds
            if spent > SHORT_S:
                break
        return size / fastest


def _tell(words: str) -> None:
    say(f"batch_size auto: {words}")


def _stopped() -> InterruptedRunError:
    return InterruptedRunError("stopped while batch sizes were tried")
