"""The file name of an image: from its index, or by the manifest's template; and back."""

import json
import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from runner.errors import ManifestError, Problem
from runner.manifest.name_template import NameTemplate, is_reserved
from runner.plan import Plan, Task
from runner.say import cut

__all__ = [
    "check_names",
    "image_index",
    "image_name",
    "is_folder_name",
    "name_key",
    "template_name",
]

SAFE = re.compile(r"[\w +,.@()=-]*", re.ASCII)  # nothing to replace: nearly all values
UNSAFE = re.compile(r'[/\\:*?"<>|]')
OWN = ("index", "prompt_index", "variation", "seed", "id", "prompt")  # of a task
LONGEST = 200  # bytes of a name: temporary files add 50, and 255 is the most on nearly all disks
LONGEST_PATH = 1000  # with its folders, to which comes where the output folder lies


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


def template_name(template: NameTemplate, task: Task) -> str:
    """`fox-1/samples/0002.png`. A pure function of the task. Raises ValueError for a value that the
    task does not have, or that makes no name."""
    written = "".join(
        part.text + (_value(task, part.field, part.spec) if part.field else "")
        for part in template.parts
    )
    path = "/".join(map(_safe_start, written.split("/"))) + ".png"
    if is_reserved(path):
        raise ValueError(f"{path}: a reserved name; put text before or after the value")
    if any(len(name.encode()) > LONGEST for name in path.split("/")):
        raise ValueError(
            f"{cut(path, 80)}: longer than {LONGEST} bytes; cut a value, as in {{id:.40}}"
        )
    if len(path.encode()) > LONGEST_PATH:
        raise ValueError(f"{cut(path, 80)}: longer than {LONGEST_PATH} bytes; take fewer folders")
    return path


def _safe_start(name: str) -> str:
    """A name that no system hides, cuts or takes for `..`."""
    name = name.lstrip(" ").rstrip(" .")
    return f"_{name.lstrip('.')}" if not name or name.startswith(".") else name


def _value(task: Task, field: str, spec: str) -> str:
    """A value as text that no file system takes for something else: what is unsafe becomes `_`."""
    value = _lookup(task, field)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if spec.startswith("."):
        text = text[: int(spec[1:])]
    elif spec and not (text.isascii() and text.isdecimal()):
        raise ValueError(
            f"{{{field}:{spec}}}: {cut(text, 40)} is no whole number; leave :{spec} out"
        )
    elif spec:
        text = format(int(text), spec)
    if SAFE.fullmatch(text):
        return text
    text = unicodedata.normalize("NFC", UNSAFE.sub("_", text))
    return "".join(c if c.isprintable() else "_" for c in text)


def _lookup(task: Task, field: str) -> Any:
    if field in OWN and (value := getattr(task, field)) is not None:
        return value
    for values in (task.sweep, task.meta, task.parameters):
        if values.get(field) is not None:
            return values[field]
    raise ValueError(f"{{{field}}}: not given; known are {cut(', '.join(_known(task)), 200)}")


def _known(task: Task) -> Iterator[str]:
    yield from ("index", "prompt_index", "variation", "seed", "prompt")
    if task.id is not None:
        yield "id"
    yield from (*task.sweep, *task.meta, *task.parameters)


def name_key(name: str) -> int:
    """Equal for names that some file system takes for one: case and composition do not count."""
    if name.isascii():
        return hash(name.lower())
    return hash(unicodedata.normalize("NFC", name).casefold())


def check_names(plan: Plan, template: NameTemplate | None) -> Mapping[int, int]:
    """The index of each image by `name_key`. Raises ManifestError where images have no name, or one
    name, or folders of names that differ in their case alone. Without a template there is nothing
    to check."""
    found: dict[int, int] = {}
    folders = _Folders()
    problems: dict[str, Problem] = {}
    if template is None:
        return found
    for task in plan.tasks():
        try:
            name = template_name(template, task)
        except ValueError as error:
            place = plan.where(task.prompt_index)
            problems.setdefault(str(error), Problem(place, f"output.name: {error}"))
            continue
        other = found.setdefault(name_key(name), task.index)
        if other != task.index:
            place = plan.where(task.prompt_index)
            words = f"output.name: images {other} and {task.index} would both be {name}"
            problems[name] = Problem(place, f"{words}; add {_what_differs(plan, other, task)}")
        folders.add(name)
        if len(problems) > ManifestError.shown:
            break
    if not problems and folders.are_alike():
        problems = _alike_folders(plan, template)
    if problems:
        raise ManifestError([*problems.values()])
    return found


class _Folders:
    """The folders of many names, 16 bytes for each."""

    def __init__(self) -> None:
        self.keys, self.names = array("q"), array("q")
        self.last = ""

    def add(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        if folder != self.last:  # images of one folder often come in a row
            self.last = folder
            for path in _upwards(folder):
                self.keys.append(name_key(path))
                self.names.append(hash(path))

    def are_alike(self) -> bool:
        """Whether two of them are one where case and composition do not count."""
        import numpy as np  # late: few names have folders

        return np.unique(self.keys).size < np.unique(self.names).size if self.keys else False


def _upwards(folder: str) -> Iterator[str]:
    """`a/b` → a/b, a."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]


def _alike_folders(plan: Plan, template: NameTemplate) -> dict[str, Problem]:
    """What is wrong where `are_alike`."""
    first: dict[int, str] = {}
    problems: dict[str, Problem] = {}
    for task in plan.tasks():
        for folder in _upwards(template_name(template, task).rpartition("/")[0]):
            other = first.setdefault(name_key(folder), folder)
            if other != folder and folder not in problems:
                words = f"the folders {other} and {folder} are one on some disks; write them alike"
                place = plan.where(task.prompt_index)
                problems[folder] = Problem(place, f"output.name: {words}")
    return problems


def _what_differs(plan: Plan, other: int, task: Task) -> str:
    before = plan.task(other)
    if before.prompt_index != task.prompt_index:
        return "{prompt_index}, or another value that differs"
    fields = [*(name for name in task.sweep if before.sweep.get(name) != task.sweep[name])]
    return f"{{{[*fields, 'variation'][0]}}}"
