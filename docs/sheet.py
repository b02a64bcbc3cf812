"""An output folder → one picture of its images: `python docs/sheet.py outputs/job docs/job.png`."""

import sys
from pathlib import Path

from PIL import Image

COLUMNS, GAP = 4, 8


def sheet(folder: Path) -> Image.Image:
    """All images in order, `COLUMNS` a row, each in a cell of the largest one's size."""
    images = [Image.open(path) for path in sorted(folder.glob("*.png"))]
    width, height = (max(image.size[axis] for image in images) + GAP for axis in (0, 1))
    rows = -(-len(images) // COLUMNS)
    made = Image.new("RGB", (COLUMNS * width + GAP, rows * height + GAP), "white")
    for place, image in enumerate(images):
        made.paste(image, (GAP + place % COLUMNS * width, GAP + place // COLUMNS * height))
    return made


if __name__ == "__main__":
    sheet(Path(sys.argv[1])).save(sys.argv[2], optimize=True)
