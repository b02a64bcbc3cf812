"""Whether the images will find room on the disk, checked before the work begins."""

import errno
import os

from runner.errors import DiskError
from runner.folder.paths import OutputFolder
from runner.plan import Plan
from runner.units import counted

__all__ = ["check", "notice"]

BYTES_A_PIXEL = 2.2  # in a PNG at level 1; 3 without compression
BYTES_BESIDE = 3000  # for the journal line, the metadata line and the texts in the image
USUAL_PIXELS = 1024 * 1024  # where the manifest does not set the size


def check(folder: OutputFolder) -> None:
    """Raises DiskError where not even an image of a single colour would fit."""
    free, free_files = _free(folder)
    if free < BYTES_BESIDE or free_files < 1:
        room = f"{free} bytes, {counted(free_files, 'file')}"
        raise DiskError(errno.ENOSPC, f"{folder.dir}: No space left on device ({room})")


def notice(folder: OutputFolder, plan: Plan, images: int) -> str | None:
    """A warning where not all images may fit. An estimate: simple pictures compress better."""
    free, free_files = _free(folder)
    needed = images * _bytes_an_image(plan)
    if needed <= free and images <= free_files:
        return None
    return (
        f"{folder.dir}: {_size(free)} and {counted(free_files, 'file')} free, "
        f"{counted(images, 'image')} may take {_size(needed)}"
    )


def _free(folder: OutputFolder) -> tuple[int, int]:
    """How many bytes and files can still be written."""
    disk = os.statvfs(folder.dir)
    # A file system without a limit on files says 0.
    return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 2**63


def _bytes_an_image(plan: Plan) -> int:
    """For the smallest images of the plan."""
    pixels = min((h * w if h and w else USUAL_PIXELS for h, w in plan.sizes), default=USUAL_PIXELS)
    return round(pixels * BYTES_A_PIXEL) + BYTES_BESIDE


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"
