"""The input images of a pipeline call, read in the background while the call before it works."""

import io
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from PIL import Image, ImageOps

from runner.manifest.input_images import FORMATS, InputFaultError, InputFiles, inputs_of, renamed
from runner.plan import Task

__all__ = ["InputImages"]

THREADS = 2  # decoding a photo takes about as long as a step of a small model


class InputImages:
    """Of the batch that is made and of the one that is expected next, each file read once."""

    def __init__(self, files: InputFiles) -> None:
        self.files = files
        self._pool: ThreadPoolExecutor | None = None
        self._read: dict[str, Future[Image.Image]] = {}

    def expect(self, now: Iterable[Task], later: Iterable[Task]) -> None:
        """Begin to read what a call will need now and what the next will, and forget all else."""
        wanted = [file for task in (*now, *later) for _, file in inputs_of(task.parameters)]
        self._read = {file: self._begin(file) for file in wanted}

    def of(self, task: Task) -> dict[str, Any]:
        """A task's input images by parameter: one, or a list as in the manifest. Raises
        InputFaultError with the file's name."""
        found = renamed(task.parameters, self._image)
        return {name: found[name] for name, _ in inputs_of(task.parameters)}

    def of_call(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """The input images of one call: of several tasks a list of one each."""
        each = [self.of(task) for task in tasks]
        return each[0] if len(each) == 1 else {n: [one[n] for one in each] for n in each[0]}

    def _begin(self, file: str) -> Future[Image.Image]:
        if file not in self._read:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="input")
            self._read[file] = self._pool.submit(_opened, self.files, file)
        return self._read[file]

    def _image(self, file: str) -> Image.Image:
        """A copy: a pipeline may change what it is given."""
        return self._begin(file).result().copy()


def _opened(files: InputFiles, file: str) -> Image.Image:
    """As diffusers' `load_image` opens it: turned as the camera has noted, in RGB."""
    try:
        image = Image.open(io.BytesIO(files.read(file)), formats=FORMATS)
        return ImageOps.exif_transpose(image).convert("RGB")
    except InputFaultError as error:
        raise InputFaultError(f"{file}: {error}") from None
    except Exception as error:  # Pillow raises nearly anything for a file that is made to harm
        raise InputFaultError(f"{file}: cannot be read as an image: {error}") from None
