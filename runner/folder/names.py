"""Image index → file name, and back."""

__all__ = ["image_index", "image_name", "is_folder_name"]


def image_name(index: int, images_per_folder: int | None) -> str:
    """`000012.png`, or `000000/000012.png`: never a matter of the total."""
    name = f"{index:06d}.png"
    return f"{index // images_per_folder:06d}/{name}" if images_per_folder else name


def image_index(name: str, images_per_folder: int | None) -> int | None:
    """The index of an image's name, or None for a name that the runner would not give."""
    digits = name.rpartition("/")[2].removesuffix(".png")
    if not (digits.isdecimal() and digits.isascii()):
        return None
    index = int(digits)
    return index if image_name(index, images_per_folder) == name else None


def is_folder_name(name: str) -> bool:
    """Six digits or more: so the runner names its image folders, and images before `.png`."""
    return name.isascii() and name.isdecimal() and len(name) >= 6
