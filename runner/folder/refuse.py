"""Refuse a run on a folder whose files do not fit the manifest, before anything is changed."""

from runner.errors import FolderError
from runner.folder.paths import OutputFolder
from runner.folder.png import read_text
from runner.folder.scan import scan
from runner.folder.survey import Survey
from runner.plan import Plan
from runner.units import first_few

__all__ = ["refuse", "refuse_to_draw"]


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
        raise FolderError(
            f"{folder.dir} has finished images that this manifest would not make "
            f"({'; '.join(found.reasons)}); remake or remove just those with --regenerate, or use "
            f"another folder: --output DIR"
        )


def refuse_to_draw(folder: OutputFolder, plan: Plan) -> None:
    """Raises FolderError where a seed would be drawn, but images made with an earlier drawn seed
    are there: with a new seed, all of them would look changed."""
    sizes = scan(folder, plan).sizes if folder.dir.is_dir() else ()
    for index, size in enumerate(sizes):
        if size <= 0 or plan.has_given_seeds(plan.prompts[plan.task(index).prompt_index]):
            continue
        path = folder.image(plan.task(index))
        text = read_text(path) or {}
        seed = text.get("seed", "")[:20]  # no seed has more digits
        made_as = text.get("index", "")[:20]  # it may have moved since
        index = int(made_as) if made_as.isdecimal() else index
        if "fingerprint" in text and seed.isdecimal() and int(seed) >= index:
            raise FolderError(
                f"{folder.manifest} is gone, which recorded the seed of the images that are there; "
                f"go on with the seed in {path.name}, --set "
                f"seed={int(seed) - index}, or use another folder: --output DIR"
            )
