"""`model_index.json`: the class of a pipeline, and the library and the class of each component."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.errors import ModelError
from runner.model.json_file import AGAIN, read_json

__all__ = ["INDEX", "components_of", "index_of"]

INDEX = "model_index.json"
MAX_NAME = 200  # characters of a class or a library


def index_of(folder: Path, shown: str) -> dict[str, Any]:
    """What the file has: each component's name → [library, class], the pipeline's class as
    `_class_name` (for code of the model's own: [file, class]), and settings.

    Raises ModelError for a folder without one, and for values that have not this form.
    """
    path = folder / INDEX
    if not folder.is_dir():
        raise ModelError(f"{shown}: no such folder; a model is a folder, a hub ID or demo")
    if not path.exists():
        raise ModelError(f"{shown}: no {INDEX} in {folder}; not a diffusers pipeline")
    values = read_json(path)
    own = values.get("_class_name")
    if not (_is_name(own) or _names_two(own)):
        raise ModelError(f"{path}: names no pipeline class; {AGAIN}")
    for name, value in values.items():
        if not name.startswith("_"):
            _check(path, name, value)
    return values


def components_of(index: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Component → its library and class, for the components that the pipeline has."""
    return {
        name: (value[0], value[1])
        for name, value in index.items()
        if not name.startswith("_") and _names_two(value)
    }


def _check(path: Path, name: str, value: Any) -> None:
    """Refuse what cannot be a component and is no setting either."""
    if not name.isidentifier():
        raise ModelError(f"{path}: {name[:80]!r} cannot be the name of a component; {AGAIN}")
    is_setting = not isinstance(value, list) or not any(isinstance(v, str | None) for v in value)
    if not (is_setting or value == [None, None] or _names_two(value)):
        raise ModelError(f"{path}: {name} must be [library, class]; {AGAIN}")


def _names_two(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_name, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= MAX_NAME
