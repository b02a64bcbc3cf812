"""Images as PNG files that carry their prompt, seed and parameters."""

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.folder import files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = [
    "Committed",
    "call_in",
    "commit",
    "encode",
    "open_picture",
    "overwrite",
    "read_text",
    "whole",
]

PNG_END = b"IEND\xaeB`\x82"  # the last chunk; Pillow reads a file without it, too


class Committed(NamedTuple):
    """A finished file: its size in bytes and the CRC-32 of its bytes."""

    size: int
    crc: int


def encode(pixels: "NDArray[np.uint8]", text: Mapping[str, Any], level: int) -> bytes:
    """The PNG of an image (H, W, 3 or 4). `text` goes into text chunks before the pixels, with a
    CRC-32 of the pixels; values other than strings are written as JSON. `level`, 0 to 9, changes
    the size of the file and the time, never a pixel."""
    from PIL import Image, PngImagePlugin

    image = Image.fromarray(pixels)
    info = PngImagePlugin.PngInfo()
    for key, value in {**text, "pixels": _crc(image)}.items():
        words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        info.add_itxt(key, words)
    buffer = BytesIO()
    image.save(buffer, "PNG", pnginfo=info, compress_level=level)
    return buffer.getvalue()


@contextlib.contextmanager
def open_picture(source: Path | BytesIO, *formats: str) -> Iterator["Image"]:
    """A picture in a file that anybody may have written, open for reading as a PNG or as one of
    `formats`, never as another: for some, such as EPS, Pillow starts a program.

    Raises OSError, and ValueError for whatever else is wrong with it.
    """
    from PIL import Image

    try:
        with Image.open(source, formats=formats or ("PNG",)) as image:
            yield image
    except OSError:
        raise
    except Exception as error:  # Pillow raises nearly anything for a file that is made to harm
        raise ValueError(f"{type(error).__name__}: {error}") from error


def read_text(path: Path, *, is_whole: bool = False) -> dict[str, str] | None:
    """The text chunks of a PNG; None for a file that is not a readable PNG.

    With `is_whole`, the pixels are read too. Then a cut file gives None, and a picture that
    somebody edited, whose pixels have another CRC-32 than its text says, gives no text: {}.
    """
    try:
        if is_whole:
            found = whole(path.read_bytes())
            return found and (found[0] if found[1] else {})
        with open_picture(path) as image:
            return _texts(image.info)
    except (OSError, ValueError):
        return None


def whole(data: bytes) -> tuple[dict[str, str], bool] | None:
    """The texts of a PNG, and whether its pixels have the CRC-32 that they say; None for bytes that
    are not a whole PNG."""
    try:
        with open_picture(BytesIO(data)) as image:
            image.load()
            texts = _texts(getattr(image, "text", {}))
            return (texts, texts.get("pixels") == _crc(image)) if data.endswith(PNG_END) else None
    except (OSError, ValueError):
        return None


def _texts(info: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in info.items() if isinstance(value, str)}


def _crc(image: "Image") -> str:
    return f"{zlib.crc32(image.tobytes()):08x}"


def call_in(texts: Mapping[str, str]) -> str:
    """The parameters of the pipeline's call, as JSON, among the texts of an image. The first
    version had them where other programs look for a text of their own form."""
    return texts.get("call") or texts.get("parameters", "")


def commit(
    path: Path, data: bytes, launch: str, check: Callable[[], None] = files.no_check
) -> Committed | None:
    """Write a new image; None where the name is taken. Calls `check` and raises DiskError as
    `files.create` does."""
    try:
        files.create(path, (data,), launch, check)
    except FileExistsError:
        return None
    return Committed(len(data), zlib.crc32(data))


def overwrite(
    path: Path, data: bytes, launch: str, check: Callable[[], None] = files.no_check
) -> Committed:
    """As `commit`, but over an existing image."""
    files.replace(path, (data,), launch, check)
    return Committed(len(data), zlib.crc32(data))
