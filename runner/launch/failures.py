"""One and the same error from the first image on ends a job: the others would fare no better."""

import contextlib
import math
import re
import zlib

from runner.launch.store import Store, StoreLostError

__all__ = ["Failures"]

FIRST_IMAGES = 8
SHARE = 0.01  # of the images to make, where that is more


class Failures:
    """Counts the results of all replicas in the store. `is_watching` is False where the manifest
    names a limit of its own."""

    def __init__(self, store: Store, images: int, *, is_watching: bool) -> None:
        self._store = store
        self._is_watching = is_watching
        self._enough = max(FIRST_IMAGES, math.ceil(images * SHARE))
        self._last: str | None = None  # the last error that this rank saw

    def note(self, error: str | None) -> None:
        """A result: the error of a failure, or None for an image."""
        if not self._is_watching:
            return
        with contextlib.suppress(StoreLostError):
            self._store.add("results")
            if error is not None:
                self._last = error
                self._store.add(_key(error))

    def same_error(self) -> str:
        """The error of all results so far, once there are enough of them; else nothing."""
        if not self._is_watching or self._last is None:
            return ""
        with contextlib.suppress(StoreLostError):
            failed, results = self._store.counts([_key(self._last), "results"])
            if failed == results >= self._enough:
                return f"the first {results} images failed with the same error: {self._last}"
        return ""


def _key(error: str) -> str:
    """Equal for errors that differ in numbers alone, as in sizes and addresses."""
    return f"error/{zlib.crc32(re.sub('[0-9]+', '#', error).encode())}"
