"""A contact sheet: the images of a job in one picture, those of a sweep by its axes.

Only one strip of cells is in memory at a time. WebP cannot be written that way, so a sheet in that
form is limited in size.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import LaunchError
from runner.folder import files
from runner.folder.paths import OutputFolder
from runner.folder.png import open_picture
from runner.gallery.png_stream import PngStream
from runner.gallery.thumbnails import shrink, source_of
from runner.say import cut, printable

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Layout", "layout", "write_sheet"]

Row = Mapping[str, Any]  # of page_rows

LARGEST, SMALLEST = 256, 24  # pixels of a cell, where nobody asks for a size
PIXELS = 40_000_000  # of a sheet whose cells have a size of our choice: any viewer can open it
GAP = 8
KEPT = ("index", "state", "file_name", "fingerprint", "id", "prompt_index", "sweep")
SIDES = ("width", "height")
NUMBERED = 64  # pixels of a cell that has room for its number
TEXT, LEADING, LETTER = 13, 18, 7  # pixels: the text, from line to line, about one letter
LABEL = 22  # letters
MOST_WEBP, MOST_WEBP_SIDE = 64_000_000, 16_383
SOFTWARE, SOFTWARE_TAG = "runner sheet", 0x0131  # how a sheet says that it is one
PAPER, INK, SOFT, EMPTY = "#ffffff", "#2b2a27", "#77736b", "#efede8"


@dataclass(frozen=True, slots=True)
class Layout:
    """Cells in lines. Over the columns and before each line stand short texts, if any do."""

    heads: Sequence[Sequence[str]]  # of each column, from the top
    lines: Sequence[tuple[Sequence[str], Sequence[Row | None]]]

    @property
    def columns(self) -> int:
        return max(len(cells) for _, cells in self.lines)


def layout(rows: Sequence[Row], columns: int | None) -> Layout:
    """A sweep by its axes, except where somebody asks for a number of columns; anything else in
    index order, about as wide as high."""
    if columns is None and all("sweep" in row for row in rows):
        return _by_axes(rows)
    columns = columns or math.ceil(math.sqrt(len(rows)))
    lines = [((), rows[start : start + columns]) for start in range(0, len(rows), columns)]
    return Layout([()] * columns, lines)


def _by_axes(rows: Sequence[Row]) -> Layout:
    """The last axes go across, as many as make it about as wide as high; prompts and the other axes
    go down. Where several images have one place, each but the first is one line further down."""
    axes = list(rows[0]["sweep"])
    if len({row["prompt_index"] for row in rows}) == 1:  # its number would be in each line
        rows = [{"id": "", **row} for row in rows]
    layouts = [_split(rows, axes[:at], axes[at:]) for at in range(len(axes))]
    return min(layouts, key=lambda made: abs(math.log(made.columns / len(made.lines))))


def _split(rows: Sequence[Row], down: Sequence[str], across: Sequence[str]) -> Layout:
    heads = {_values(row, across): None for row in rows}
    places = {values: place for place, values in enumerate(heads)}
    lines: dict[tuple[str, ...], list[list[Row | None]]] = {}
    for row in rows:
        prompt = str(row.get("id", f"prompt {row['prompt_index']}"))
        label = (*filter(None, [prompt]), *_values(row, down))
        stack, place = lines.setdefault(label, []), places[_values(row, across)]
        line = next((one for one in stack if one[place] is None), None)
        if line is None:
            line = [None] * len(places)
            stack.append(line)
        line[place] = row
    return Layout(list(heads), [(label, line) for label, stack in lines.items() for line in stack])


def _values(row: Row, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name} {row['sweep'].get(name)}" for name in axes)


def write_sheet(
    folder: OutputFolder, rows: Iterable[Row], path: Path, columns: int | None, size: int | None
) -> None:
    """Write the sheet; `size` is that of a cell. Raises LaunchError where the file is another
    program's, or WebP cannot hold the sheet."""
    if path.exists() and not _is_sheet(path):
        raise LaunchError(f"{path}: is there, and no contact sheet; use another --file")
    kept = [{key: row[key] for key in (*KEPT, *SIDES) if key in row} for row in rows]
    made = layout(kept, columns)
    size = size or _size_for(made)
    drawing = _Drawing(folder, made, size)
    temporary = files.temporary_path(path, "0" * 8)
    try:
        if path.suffix.lower() == ".png":
            _write_png(temporary, drawing)
        else:
            _write_webp(temporary, drawing, path)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _size_for(made: Layout) -> int:
    """Pixels of a cell, so that any viewer can open the sheet; no more than the images have."""
    rows = (row for _, cells in made.lines for row in cells if row)
    widest = max(max(_sides(row, LARGEST)) for row in rows)
    fitting = math.isqrt(PIXELS // (made.columns * len(made.lines))) - GAP
    return max(SMALLEST, min(LARGEST, widest, fitting))


def _sides(row: Row, unknown: int) -> tuple[int, int]:
    return int(row.get("width", unknown)), int(row.get("height", row.get("width", unknown)))


def _box(made: Layout, size: int) -> tuple[int, int]:
    """Width and height of a cell that holds each image, its longer side `size` at most."""
    box = [0, 0]
    for row in (row for _, cells in made.lines for row in cells if row):
        sides = _sides(row, size)
        part = min(1.0, size / max(sides))
        box = [max(old, math.ceil(side * part)) for old, side in zip(box, sides, strict=True)]
    return box[0], box[1]


def _is_sheet(path: Path) -> bool:
    try:
        with open_picture(path, "PNG", "WEBP") as image:
            if image.format == "PNG":  # whose `getexif` would read all pixels
                return image.info.get("Software") == SOFTWARE
            return image.getexif().get(SOFTWARE_TAG) == SOFTWARE
    except (OSError, ValueError):
        return False


def _write_png(temporary: Path, drawing: "_Drawing") -> None:
    with temporary.open("wb") as file:
        stream = PngStream(file, drawing.size, {"Software": SOFTWARE})
        for strip in drawing.strips():
            stream.add(strip)
        stream.close()


def _write_webp(temporary: Path, drawing: "_Drawing", path: Path) -> None:
    from PIL import Image

    width, height = drawing.size
    if max(width, height) > MOST_WEBP_SIDE or width * height > MOST_WEBP:
        raise LaunchError(
            f"--file {path}: {width} × {height} pixels are too many for WebP; use a smaller --size,"
            f" or a .png"
        )
    sheet, top = Image.new("RGB", drawing.size, PAPER), 0
    for strip in drawing.strips():
        sheet.paste(strip, (0, top))
        top += strip.height
    exif = Image.Exif()
    exif[SOFTWARE_TAG] = SOFTWARE
    sheet.save(temporary, "WEBP", quality=85, exif=exif)


class _Drawing:
    """The strips of a sheet: the heads, then each line of cells."""

    def __init__(self, folder: OutputFolder, made: Layout, size: int) -> None:
        from PIL import ImageFont

        self._folder, self._layout, self._longest = folder, made, size
        self._width, self._height = _box(made, size)
        self._font = ImageFont.load_default(TEXT)
        self._caption = LEADING if self._width >= NUMBERED else 0
        self._left = GAP + (LABEL * LETTER + GAP if any(label for label, _ in made.lines) else 0)
        self._head = GAP + LEADING * len(made.heads[0]) if made.heads[0] else 0
        self._line = GAP + self._height + self._caption
        height = self._head + self._line * len(made.lines) + GAP
        self.size = self._left + (self._width + GAP) * made.columns, height

    def strips(self) -> Iterator["Image"]:
        if self._head:
            yield self._heads()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # Pillow releases the GIL
            for label, cells in self._layout.lines:
                pictures = list(pool.map(self._picture, cells))
                yield self._strip(label, cells, pictures)
        yield self._paper(GAP)

    def _paper(self, height: int) -> "Image":
        from PIL import Image

        return Image.new("RGB", (self.size[0], height), PAPER)

    def _heads(self) -> "Image":
        strip = self._paper(self._head)
        for column, head in enumerate(self._layout.heads):
            self._write(strip, self._x(column), GAP, head, INK, self._width // LETTER)
        return strip

    def _strip(
        self, label: Sequence[str], cells: Sequence[Row | None], pictures: Sequence["Image | None"]
    ) -> "Image":
        from PIL import Image

        strip = self._paper(self._line)
        self._write(strip, GAP, GAP, label, INK, LABEL)
        for column, (row, picture) in enumerate(zip(cells, pictures, strict=True)):
            x, width, height = self._x(column), self._width, self._height
            if picture is None:
                picture = Image.new("RGB", (width, height), EMPTY)
            room = (width - picture.width) // 2, (height - picture.height) // 2
            strip.paste(picture, (x + room[0], GAP + room[1]))
            if row is not None and self._caption:
                state = "" if row["state"] == "done" else f" {row['state']}"
                words = f"{row['index']:06d}{state}"
                self._write(strip, x, GAP + height + 2, [words], SOFT, width // LETTER)
        return strip

    def _x(self, column: int) -> int:
        return self._left + (self._width + GAP) * column

    def _write(
        self, strip: "Image", x: int, y: int, texts: Sequence[str], colour: str, most: int
    ) -> None:
        """Each text on a line of its own, cut to so many letters."""
        from PIL import ImageDraw

        draw = ImageDraw.Draw(strip)
        for number, words in enumerate(texts):
            text = cut(printable(words).replace("\n", " "), most)
            draw.text((x, y + LEADING * number), text, fill=colour, font=self._font)

    def _picture(self, row: Row | None) -> "Image | None":
        """None where there is no image, or none that can be read."""
        if row is None or row["state"] != "done":
            return None
        try:
            with open_picture(source_of(self._folder, row, self._longest), "PNG", "WEBP") as image:
                return shrink(image, self._longest).convert("RGB")
        except (OSError, ValueError):
            return None
