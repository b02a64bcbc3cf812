"""How near one image is to another."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from runner.folder.png import open_picture
from runner.render.self_check import Pixels, difference

__all__ = ["Comparison", "compare", "compare_files", "pixels_of"]


class Comparison(NamedTuple):
    """`close` is within what order of sums or half precision can change."""

    verdict: Literal["exact", "close", "different"]
    most: int = 0  # of 255
    mean: float = 0.0
    words: str = ""  # where there is more to say

    def __str__(self) -> str:
        if self.verdict == "exact":
            return "exact"
        how = self.words or f"at most {self.most} of 255 apart, {self.mean:.2g} on average"
        return f"{self.verdict}: {how}"


def compare(image: Pixels, expected: Pixels, dtype: str) -> Comparison:
    if image.shape != expected.shape:
        return Comparison("different", words=difference(image, expected, dtype))
    apart = np.abs(image.astype(np.int16) - expected.astype(np.int16))
    most, mean = int(apart.max()), float(apart.mean())
    if not most:
        return Comparison("exact")
    return Comparison("different" if difference(image, expected, dtype) else "close", most, mean)


def compare_files(image: Path, expected: Path, dtype: str) -> Comparison:
    return compare(pixels_of(image), pixels_of(expected), dtype)


def pixels_of(path: Path) -> Pixels:
    with open_picture(path) as image:
        return np.asarray(image)
