"""Index → path, pixels → PNG bytes, bytes → a file that is whole or absent."""

import json
import zlib
from collections.abc import Mapping
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
    "commit",
    "encode",
    "read_text",
    "replace",
]

PNG_END = b"IEND\xaeB`\x82"  # the last chunk, which Pillow does not miss


class Committed(NamedTuple):
    """A finished file: its size in bytes, the CRC-32 of its bytes."""

    size: int
    crc: int


def encode(pixels: "NDArray[np.uint8]", text: Mapping[str, Any], level: int) -> bytes:
    """PNG bytes of an image (H, W, 3 or 4); `text` goes into text chunks before the pixels, values
    that are no strings as JSON, with a CRC-32 of the pixels. Level 0 to 9 changes size and time,
    never a pixel."""
    from PIL import Image, PngImagePlugin

    image = Image.fromarray(pixels)
    info = PngImagePlugin.PngInfo()
    for key, value in {**text, "pixels": _crc(image)}.items():
        words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        info.add_itxt(key, words)
    buffer = BytesIO()
    image.save(buffer, "PNG", pnginfo=info, compress_level=level)
    return buffer.getvalue()


def read_text(path: Path, *, whole: bool = False) -> dict[str, str] | None:
    """The text chunks of a PNG, or None where it is no readable PNG. With `whole`, every pixel is
    read too, so that a cut file is found, and a file whose pixels are not those that its text was
    written for has no text: somebody edited the picture."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if whole:
                image.load()
                if not path.read_bytes().endswith(PNG_END):
                    return None
            texts = getattr(image, "text", {}) if whole else image.info
            if whole and texts.get("pixels") != _crc(image):
                return {}
            return {str(key): value for key, value in texts.items() if isinstance(value, str)}
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _crc(image: "Image") -> str:
    return f"{zlib.crc32(image.tobytes()):08x}"


def commit(path: Path, data: bytes, launch: str) -> Committed | None:
    """Give an image its final name, or return None where the name is taken.

    Raises DiskError and OSError as `files.create` does.
    """
    try:
        files.create(path, (data,), launch)
    except FileExistsError:
        return None
    return Committed(len(data), zlib.crc32(data))


def replace(path: Path, data: bytes, launch: str) -> Committed:
    """As `commit`, but over an existing image."""
    files.replace(path, (data,), launch)
    return Committed(len(data), zlib.crc32(data))
