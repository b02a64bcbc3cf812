"""Refuse a run on a folder whose files do not fit the manifest, before anything is changed."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from runner.errors import FolderError
from runner.folder.differences import BY_PLACE
from runner.folder.paths import OutputFolder
from runner.folder.png import read_text
from runner.folder.scan import scan
from runner.folder.survey import Survey
from runner.plan import Plan
from runner.units import first_few

__all__ = ["refuse", "refuse_to_draw"]

LOOKED_AT = 20  # images, for the seed that they were made with
TO_GROW = (
    "; put new prompts at the end of the list, or begin a new folder with seed: {per: prompt}, "
    "with which images move along with their prompts"
)


def refuse(folder: OutputFolder, found: Survey, *, regenerate: bool) -> None:
    """Raises FolderError for files that the runner did not write, for images that another
    images_per_folder placed and, unless `regenerate`, for finished images that the manifest does
    not describe any more."""
    if found.misplaced:
        raise FolderError(
            f"{folder.dir} has images placed with another images_per_folder than the manifest's "
            f"{folder.images_per_folder or 'null'} ({found.misplaced.relative_to(folder.dir)}); "
            f"keep that one, or use another folder: --output DIR"
        )
    if found.renamed:
        raise FolderError(
            f"{folder.dir} has images with another output.name than the manifest's: "
            f"{found.renamed}; keep that one, or use another folder: --output DIR"
        )
    if found.foreign:
        them = "it" if len(found.foreign) == 1 else "them"
        raise FolderError(
            f"{first_few([path.name for path in found.foreign])} in {folder.dir}: not written by "
            f"the runner; move {them} away, or use another folder: --output DIR"
        )
    if found.unfit and not regenerate:
        to_grow = TO_GROW if any(BY_PLACE in reason for reason in found.reasons) else ""
        raise FolderError(
            f"{folder.dir} has finished images that this manifest would not make "
            f"({'; '.join(found.reasons)}){to_grow}; remake or remove just those with "
            f"--regenerate, or use another folder: --output DIR"
        )


def refuse_to_draw(folder: OutputFolder, plan: Plan) -> None:
    """Raises FolderError where a seed would be drawn, but images made with an earlier drawn seed
    are there: with a new seed, all of them would look changed."""
    images = _made_before(folder, plan) if folder.dir.is_dir() else iter(())
    made = list(itertools.islice(images, LOOKED_AT))
    if not made:
        return
    starts = {image.by_prompt for image in made if image.by_prompt is not None}
    places = {image.by_place for image in made}
    remedy = ""
    if len(starts) == 1:
        remedy = f"--set 'seed={{per: prompt, start: {min(starts)}}}'"
    elif len(places) == 1:  # drawn by an earlier version
        remedy = f"--set seed={min(places)}"
    go_on = f"go on with the seed in {made[0].path.name}, {remedy}, or " if remedy else ""
    raise FolderError(
        f"{folder.manifest} is gone, which recorded the seed of the images that are there; "
        f"{go_on}use another folder: --output DIR"
    )


class _MadeBefore(NamedTuple):
    """An image, and the drawn seed that would have given it its own."""

    path: Path
    by_place: int
    by_prompt: int | None  # None where another prompt has its place now


def _made_before(folder: OutputFolder, plan: Plan) -> Iterator[_MadeBefore]:
    """The finished images whose seeds are drawn. `plan` has a new drawn seed."""
    drawn = plan.manifest.seed.start if plan.manifest.seed else None
    for index, size in enumerate(scan(folder, plan).sizes):
        if size <= 0 or plan.has_given_seeds(plan.prompts[plan.task(index).prompt_index]):
            continue
        task = plan.task(index)
        path = folder.image(task)
        text = read_text(path) or {}
        words, made_as = text.get("seed", "")[:20], text.get("index", "")[:20]
        if "fingerprint" not in text or not words.isdecimal():
            continue
        seed, place = int(words), int(made_as) if made_as.isdecimal() else index
        start = seed - (task.seed - (drawn or 0))
        is_its_own = text.get("prompt") == task.prompt and start >= 0
        if is_its_own or seed >= place:
            yield _MadeBefore(path, seed - place, start if is_its_own else None)
