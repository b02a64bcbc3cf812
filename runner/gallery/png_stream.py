"""A PNG file that is written strip by strip, so that a large picture needs little memory."""

import struct
import zlib
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PngStream"]

LEVEL = 6
DIFFERENCE = 1  # the filter of every line: bytes less those of the pixel before, which pack better


class PngStream:
    """A picture of `size` (width, height) in RGB; `add` its strips from the top, then `close`."""

    def __init__(self, file: IO[bytes], size: tuple[int, int], text: dict[str, str]) -> None:
        self._file = file
        self._packer = zlib.compressobj(LEVEL)
        file.write(b"\x89PNG\r\n\x1a\n")
        eight_bits_rgb = bytes([8, 2, 0, 0, 0])
        self._chunk(b"IHDR", struct.pack(">II", *size) + eight_bits_rgb)
        for key, value in text.items():
            self._chunk(b"tEXt", f"{key}\0{value}".encode("latin-1"))

    def add(self, strip: "Image") -> None:
        import numpy as np

        pixels = np.asarray(strip)
        lines = pixels.copy()
        lines[:, 1:] -= pixels[:, :-1]
        lines = lines.reshape(len(lines), -1)
        filters = np.full((len(lines), 1), DIFFERENCE, np.uint8)
        self._data(self._packer.compress(np.hstack([filters, lines]).tobytes()))

    def close(self) -> None:
        self._data(self._packer.flush())
        self._chunk(b"IEND", b"")

    def _data(self, data: bytes) -> None:
        if data:
            self._chunk(b"IDAT", data)

    def _chunk(self, kind: bytes, data: bytes) -> None:
        checksum = zlib.crc32(kind + data)
        self._file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))
