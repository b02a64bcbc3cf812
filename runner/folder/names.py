"""The file name of an image from its index, and the index from the name."""

__all__ = ["image_index", "image_name", "is_folder_name"]


def image_name(index: int, images_per_folder: int | None) -> str:
    """`000012.png`, or `000000/000012.png`. The number of images does not change it."""
    name = f"{index:06d}.png"
    return f"{index // images_per_folder:06d}/{name}" if images_per_folder else name


def image_index(name: str, images_per_folder: int | None) -> int | None:
    """The index of the image with this name; None for a name that the runner gives to none."""
    digits = name.rpartition("/")[2].removesuffix(".png")
    if not (digits.isdecimal() and digits.isascii()):
        return None
    index = int(digits)
    return index if image_name(index, images_per_folder) == name else None


def is_folder_name(name: str) -> bool:
    """Whether it is six digits or more, as in the names of image folders, and of images before
    `.png`."""
    return name.isascii() and name.isdecimal() and len(name) >= 6
