"""The files of a job's input images: where they lie, what is in them."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.model.input_names import is_input

__all__ = [
    "FORMATS",
    "InputFaultError",
    "InputFiles",
    "from_folder",
    "inputs_of",
    "names_input",
    "renamed",
    "without_inputs",
]

# What PIL has no faithful RGB for: it would cut off the upper half of the values.
WIDE_MODES = ("I", "F")
MAX_BYTES = 1 << 30  # of a file
# Others are refused: for EPS, whatever the file's name says, Pillow starts Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "TIFF", "GIF", "BMP", "JPEG2000", "PPM", "TGA")
ORIENTATION = 0x0112  # an Exif tag: from 5 on width and height change places


class InputFaultError(Exception):
    """A file that is no input image; in words that follow its name."""


def inputs_of(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(parameter, file) of each input image, as the manifest names it."""
    for name, value in parameters.items():
        if is_input(name) and value is not None:
            yield from ((name, file) for file in (value if isinstance(value, list) else [value]))


def names_input(parameters: Mapping[str, Any]) -> bool:
    return any(is_input(name) and value is not None for name, value in parameters.items())


def renamed(parameters: Mapping[str, Any], new: Any) -> dict[str, Any]:
    """The parameters with what `new(file)` returns in place of each file of an input image."""
    return {
        name: value
        if not is_input(name) or value is None
        else [new(file) for file in value]
        if isinstance(value, list)
        else new(value)
        for name, value in parameters.items()
    }


def without_inputs(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if not is_input(name)}


def from_folder(parameters: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """Parameters whose files are named from `folder`, as the manifest would name them."""
    if not folder or not names_input(parameters):
        return parameters
    return renamed(parameters, lambda file: _joined(folder, file))


def _joined(folder: str, file: str) -> str:
    path = os.path.expanduser(file)
    return file if os.path.isabs(path) else os.path.normpath(os.path.join(folder, path))


class InputFiles:
    """The files of input images, each looked at once: later the job holds on to what was found."""

    def __init__(self, folder: str | None) -> None:
        """`folder` is where their paths start; None in a job without any."""
        self.folder = Path(folder or "")
        self._sums: dict[str, str] = {}
        self._sizes: dict[str, tuple[int, int]] = {}

    def path(self, file: str) -> Path:
        return self.folder / Path(file).expanduser()

    def check(self, file: str) -> None:
        """Raises InputFaultError for what is no file that can be read: to open a pipe would wait
        for ever."""
        path = self.path(file)
        try:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):
                raise InputFaultError("is no file")
            if about.st_size > MAX_BYTES:
                raise InputFaultError(f"has more than {MAX_BYTES >> 20} MiB")
            path.open("rb").close()
        except OSError as error:
            raise InputFaultError(error.strerror or str(error)) from None

    def read(self, file: str) -> bytes:
        """What is in a file. Raises InputFaultError where it cannot be read, or is not what this
        process found in it before."""
        self.check(file)
        try:
            data = self.path(file).read_bytes()
        except OSError as error:
            raise InputFaultError(error.strerror or str(error)) from None
        found = hashlib.sha256(data).hexdigest()
        if self._sums.setdefault(file, found) != found:
            raise InputFaultError("changed since the job began; run the same command again")
        return data

    def sha256(self, file: str) -> str:
        """Of its content. Raises InputFaultError."""
        if file not in self._sums:
            self.read(file)
        return self._sums[file]

    def size(self, file: str) -> tuple[int, int]:
        """(width, height) as it is shown, turned as a camera has noted. Only the file's header is
        read. Raises InputFaultError for what is no image, or has more than 8 bits a colour."""
        if file not in self._sizes:
            self.check(file)
            self._sizes[file] = _size(self.path(file))
        return self._sizes[file]

    def by_content(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the content of each input image in place of its name. Raises InputFaultError with
        the name."""
        if not names_input(parameters):
            return parameters

        def content(file: str) -> dict[str, str]:
            try:
                return {"sha256": self.sha256(file)}
            except InputFaultError as error:
                raise InputFaultError(f"{file}: {error}") from None

        return renamed(parameters, content)


def _size(path: Path) -> tuple[int, int]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.mode.startswith(WIDE_MODES):
                raise InputFaultError("has more than 8 bits a colour; save it with 8")
            width, height = image.size
            return (height, width) if _is_on_its_side(image) else (width, height)
    except UnidentifiedImageError:
        raise InputFaultError("is no image that can be read") from None
    except Image.DecompressionBombError:
        raise InputFaultError("has too many pixels to be read safely") from None
    except OSError as error:
        raise InputFaultError(error.strerror or str(error)) from None
    except InputFaultError:
        raise
    except Exception as error:  # Pillow raises nearly anything for a file that is made to harm
        raise InputFaultError(f"is a damaged image: {error}") from None


def _is_on_its_side(image: Any) -> bool:
    """By what a camera has noted. For a PNG without such a note PIL would read all of it."""
    has_note = image.format != "PNG" or "exif" in image.info
    return has_note and image.getexif().get(ORIENTATION, 1) >= 5
