"""A manifest file and its prompt file → a frozen manifest with its prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from runner.errors import ManifestError, Problem
from runner.manifest.prompt_file import FilePrompts
from runner.manifest.prompts import Prompt, PromptFile
from runner.manifest.schema import Manifest
from runner.manifest.words import explain
from runner.manifest.yaml_tree import Node, document, set_value

__all__ = ["Loaded", "load", "parse"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A manifest with its prompts; those of a file are read from it when they are needed."""

    manifest: Manifest
    prompts: Sequence[Prompt]
    path: Path
    root: Node  # of the manifest's file, for the lines in later messages


def load(path: Path, sets: Sequence[str] = ()) -> Loaded:
    """Read a manifest and its prompt file. `sets` are --set arguments, which override it.

    Raises ManifestError with every problem of the manifest, then of the prompt file.
    """
    manifest, root = parse(path, sets)
    manifest = _with_model_path(manifest, root, path.parent)
    if not isinstance(manifest.prompts, PromptFile):
        prompts = tuple(item.to_prompt() for item in manifest.prompts)
        return Loaded(manifest, prompts, path, root)
    file = _path(root, ("prompts", "file"), path.parent, manifest.prompts.file)
    if not file.is_file():
        place = root.walk(("prompts", "file")).place
        raise ManifestError([Problem(place, f"no prompt file {file.resolve()}")])
    # The output folder holds the manifest as run: from there only the full path is right.
    manifest = manifest.model_copy(update={"prompts": PromptFile(file=str(file.resolve()))})
    return Loaded(manifest, FilePrompts(file, str(file)), path, root)


def _with_model_path(manifest: Manifest, root: Node, folder: Path) -> Manifest:
    """With the full path of a local model."""
    name = manifest.model.id
    path = _path(root, ("model", "id"), folder, name)
    if name == "demo" or not (_is_path(name) or path.is_dir()):
        return manifest
    spec = manifest.model.model_copy(update={"id": str(path.resolve())})
    return manifest.model_copy(update={"model": spec})


def _path(root: Node, key: tuple[str, ...], folder: Path, name: str) -> Path:
    """An input path, relative to the manifest. Raises ManifestError for an impossible one."""
    try:
        path = folder / Path(name).expanduser()
        path.resolve().is_file()
        if "\0" in name:
            raise ValueError("a NUL byte")
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{'.'.join(key)}: {name[:60]!r}: {reason}"
        raise ManifestError([Problem(root.walk(key).place, message)]) from None
    return path


def _is_path(model_id: str) -> bool:
    return model_id.startswith(("/", "./", "../", "~")) or model_id in (".", "..")


def parse(path: Path, sets: Sequence[str] = ()) -> tuple[Manifest, Node]:
    """The manifest without its prompt file, and its tree, for the lines in later messages.

    Raises ManifestError with every problem.
    """
    root, problems = document(_read(path), str(path))
    for assignment in sets:
        set_value(root, assignment)
    if not isinstance(root.value, dict):
        raise ManifestError([Problem(root.place, "a manifest is a mapping: model: …, prompts: …")])
    try:
        manifest = Manifest.model_validate(root.plain())
    except ValidationError as error:
        for fault in error.errors():
            if fault["type"] == "too_short" and fault["input"]:
                continue  # pydantic counts the good prompts; each bad one has a fault of its own
            node, found, place = root.walk(fault["loc"])
            problems.append(Problem(place, explain(Manifest, fault, found, node.text)))
    if problems:
        raise ManifestError(sorted(dict.fromkeys(problems), key=_by_line))
    return manifest, root


def _by_line(problem: Problem) -> tuple[str, int]:
    name, _, line = problem.place.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (problem.place, 0)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ManifestError([Problem(str(path), error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        message = f"not UTF-8 (byte {error.object[error.start]:#04x}); save the file as UTF-8"
        raise ManifestError([Problem(f"{path}:{line}", message)]) from None
