"""Small copies of the images, for report.html: WebP files in .runner/thumbnails, which
`imagefolder` and people who look at the folder do not see.

A thumbnail has the fingerprint of its image as its name, so it stays right when the image moves,
and a changed image gets another one. Where one is missing, the page shows the image itself.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.folder import files
from runner.folder.paths import OutputFolder
from runner.folder.png import open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SIDE", "make_thumbnails", "shrink", "source_of"]

SUFFIX = ".webp"
SIDE = 256  # pixels of the longer side at most; images that are no larger need no thumbnail
QUALITY = 80
FOLDER = re.compile("[0-9a-f]{2}", re.ASCII)


def make_thumbnails(folder: OutputFolder, rows: Iterable[Mapping[str, Any]]) -> None:
    """Make those that are missing, with all cores, and remove those of images that are gone."""
    wanted = {row["fingerprint"]: row["file_name"] for row in rows if _is_large(row)}
    missing = set(wanted)
    for path in _files(folder):
        if path.stem in wanted and path.suffix == SUFFIX:
            missing.discard(path.stem)
        else:
            path.unlink(missing_ok=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # Pillow releases the GIL
        for name in missing:
            pool.submit(_make, folder, folder.dir / wanted[name], name)


def source_of(folder: OutputFolder, row: Mapping[str, Any], side: int) -> Path:
    """The file to shrink to this size: the thumbnail, if it is there and large enough."""
    small = _path(folder, row["fingerprint"])
    return small if side <= SIDE and small.exists() else folder.dir / str(row["file_name"])


def _path(folder: OutputFolder, fingerprint: str) -> Path:
    return folder.thumbnails / fingerprint[:2] / f"{fingerprint}{SUFFIX}"


def _is_large(row: Mapping[str, Any]) -> bool:
    """Whether it is an image, and larger than a thumbnail as far as is known."""
    return "fingerprint" in row and max(row.get("width", SIDE + 1), row.get("height", 0)) > SIDE


def _files(folder: OutputFolder) -> Iterator[Path]:
    """What lies in the folders that the runner made. A link may lead to files of others."""
    if folder.thumbnails.is_dir():
        for directory in folder.thumbnails.iterdir():
            if FOLDER.fullmatch(directory.name) and _is_real_folder(directory):
                yield from filter(Path.is_file, directory.iterdir())


def _is_real_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _make(folder: OutputFolder, source: Path, fingerprint: str) -> None:
    """Nothing where the image cannot be read, or the disk is full: the page shows what it can."""
    with contextlib.suppress(OSError, ValueError), open_picture(source) as image:
        path = _path(folder, fingerprint)
        files.make_folder(path.parent)
        if not _is_real_folder(path.parent):
            return
        temporary = files.temporary_path(path, "0" * 8)
        shrink(image, SIDE).save(temporary, "WEBP", quality=QUALITY, method=2)
        os.replace(temporary, path)  # no fsync: a thumbnail that is lost is made again


def shrink(image: "Image", side: int) -> "Image":
    """The image with its longer side at most this long."""
    image.thumbnail((side, side), reducing_gap=2.0)
    return image
