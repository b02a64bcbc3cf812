"""`batch_size: auto` → how many images of a size are best made at once, found by trying.

Sizes are tried from the largest image down. The batch is doubled until there is no memory, or two
doublings made no more images per second. A size of about as many pixels takes the same. What is
being tried is noted in a file: where the process dies of it (the kernel ran out of memory), the
next launch tries less.
"""

import dataclasses
import json
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from runner.errors import InterruptedRunError
from runner.pipeline import DroppedError, Renderer
from runner.plan import Task, pixels_of, size_name
from runner.stop import Stop

__all__ = ["probe"]

STEPS = 4  # of a trial, at most: enough to tell what a step costs beside the decoder
GAIN = 1.05  # in images per second, below which a larger batch is not worth its memory
LARGEST = 32
PATIENCE = 2  # doublings that may gain nothing: one may have been measured badly
ALIKE = 0.8  # of the pixels of a size that was tried
BATCHES_A_REPLICA = 8  # at least, so that the replicas end at about the same time
SHORT_S = 0.5  # trials shorter than this are repeated
REPEATS = 3


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
    first, counts = _sizes(tasks)
    share = sum(counts.values()) // (BATCHES_A_REPLICA * replicas) if replicas > 1 else LARGEST
    found: dict[str, int] = {}
    deadly_name, deadly = _deadly(note)
    try:
        for alike in _groups(counts):
            most = min(LARGEST, share, max(counts[name] for name in alike))
            if deadly_name in alike:
                most = min(most, deadly - 1)
            task = _short(first[alike[0]])
            found[alike[0]] = _best(renderer, task, most, stop, note, warms_up=warms_up)
    except DroppedError:
        raise _stopped() from None
    finally:
        note.unlink(missing_ok=True)
    return found


def _deadly(note: Path) -> tuple[str, int]:
    """What the last launch tried as it died: a size and a number of images; or none."""
    try:
        text = note.read_text() if stat.S_ISREG(note.lstat().st_mode) else ""
        values = json.loads(text)
        name, images = str(values["size"]), int(values["images"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "", 0
    print(
        f"runner: batch_size auto: the last launch died while it tried {images} images of {name} "
        f"at once; trying fewer",
        file=sys.stderr,
    )
    return name, images


def _sizes(tasks: Iterable[Task]) -> tuple[dict[str, Task], dict[str, int]]:
    """The first task of each size, and how many images have it."""
    first: dict[str, Task] = {}
    counts: dict[str, int] = {}
    for task in tasks:
        name = size_name(task.parameters)
        first.setdefault(name, task)
        counts[name] = counts.get(name, 0) + 1
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
        steps = parameters.get("num_inference_steps", STEPS)
        parameters["num_inference_steps"] = min(steps, STEPS)
    return dataclasses.replace(task, parameters=parameters)


def _best(
    renderer: Renderer, task: Task, most: int, stop: Stop, note: Path, *, warms_up: bool
) -> int:
    if most < 2 or not renderer.tries([task]):  # the first call prepares what later ones reuse
        return 1
    best, best_rate, size = 1, _rate(renderer, task, 1, stop), 2
    while size <= min(most, best * 2**PATIENCE):
        note.write_text(json.dumps({"size": size_name(task.parameters), "images": size}))
        if warms_up and not renderer.tries([task] * size):
            break
        rate = _rate(renderer, task, size, stop)
        if not rate:
            break
        if rate >= GAIN * best_rate:
            best, best_rate = size, rate
        size *= 2
    return best


def _rate(renderer: Renderer, task: Task, size: int, stop: Stop) -> float:
    """Images per second in batches of this size; 0 where such a batch cannot be made."""
    fastest, spent = float("inf"), 0.0
    for _ in range(REPEATS):
        if stop.requested:
            raise _stopped()
        start = time.perf_counter()
        if not renderer.tries([task] * size):
            return 0.0
        seconds = time.perf_counter() - start
        fastest, spent = min(fastest, seconds), spent + seconds
        if spent > SHORT_S:
            break
    return size / fastest


def _stopped() -> InterruptedRunError:
    return InterruptedRunError("stopped while batch sizes were tried")
