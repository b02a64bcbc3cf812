"""The file name of an image: from its index, or by the manifest's template; and back."""

import json
import re
import unicodedata
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

UNSAFE = re.compile(r'[/\\:*?"<>|]')
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
    text = unicodedata.normalize("NFC", UNSAFE.sub("_", text))
    return "".join(c if c.isprintable() else "_" for c in text)


def _lookup(task: Task, field: str) -> Any:
    own = {
        "index": task.index,
        "prompt_index": task.prompt_index,
        "variation": task.variation,
        "seed": task.seed,
        "id": task.id,
        "prompt": task.prompt,
    }
    for values in (own, task.sweep, task.meta, task.parameters):
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
    return hash(unicodedata.normalize("NFC", name).casefold())


def check_names(plan: Plan, template: NameTemplate | None) -> Mapping[int, int]:
    """The index of each image by `name_key`. Raises ManifestError where images have no name, or one
    name, or folders of names that differ in their case alone. Without a template there is nothing
    to check."""
    found: dict[int, int] = {}
    folders: dict[int, int] = {}  # by `name_key`: a hash of the name as it is
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
        for folder in _folders(name):
            if folders.setdefault(name_key(folder), hash(folder)) != hash(folder):
                words = f"{folder}: another folder differs from it in upper and lower case alone"
                words += ", so they are one on some disks; write both alike"
                place = plan.where(task.prompt_index)
                problems.setdefault(folder, Problem(place, f"output.name: {words}"))
        if len(problems) > ManifestError.shown:
            break
    if problems:
        raise ManifestError([*problems.values()])
    return found


def _folders(name: str) -> Iterator[str]:
    """`a/b/c.png` → a/b, a."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _what_differs(plan: Plan, other: int, task: Task) -> str:
    before = plan.task(other)
    if before.prompt_index != task.prompt_index:
        return "{prompt_index}, or another value that differs"
    fields = [*(name for name in task.sweep if before.sweep.get(name) != task.sweep[name])]
    return f"{{{[*fields, 'variation'][0]}}}"
