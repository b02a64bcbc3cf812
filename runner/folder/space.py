"""Room on the disk, looked at before the start."""

import errno
import os

from runner.errors import DiskError
from runner.folder.paths import OutputFolder
from runner.plan import Plan
from runner.units import counted

__all__ = ["check", "notice"]

BYTES_A_PIXEL = 2.2  # of a PNG at level 1, of 3 without it
BYTES_BESIDE = 3000  # a journal line, a metadata line, the texts in the image
USUAL_PIXELS = 1024 * 1024  # where the manifest leaves the size to the pipeline


def check(folder: OutputFolder) -> None:
    """Raises DiskError where not even an image of one colour would fit."""
    free, free_files = _free(folder)
    if free < BYTES_BESIDE or free_files < 1:
        words = (
            f"{folder.dir}: No space left on device ({free} bytes, {counted(free_files, 'file')})"
        )
        raise DiskError(errno.ENOSPC, words)


def notice(folder: OutputFolder, plan: Plan, images: int) -> str | None:
    """A line where the images may not all fit. An estimate: pixels that compress well take less."""
    free, free_files = _free(folder)
    wanted = images * _bytes_an_image(plan)
    if wanted <= free and images <= free_files:
        return None
    return (
        f"{folder.dir}: {_words(free)} and {counted(free_files, 'file')} free, "
        f"{counted(images, 'image')} may take {_words(wanted)}"
    )


def _free(folder: OutputFolder) -> tuple[int, int]:
    """Bytes and files that may still be written."""
    disk = os.statvfs(folder.dir)
    # Some file systems count no files.
    return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 2**63


def _bytes_an_image(plan: Plan) -> int:
    """Of the smallest size in the plan."""
    pixels = min((h * w if h and w else USUAL_PIXELS for h, w in plan.sizes), default=USUAL_PIXELS)
    return round(pixels * BYTES_A_PIXEL) + BYTES_BESIDE


def _words(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"
