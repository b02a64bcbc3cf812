"""A manifest file and its prompt file → a frozen manifest with its prompts."""

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from runner.errors import ManifestError, Problem
from runner.manifest.input_images import names_input
from runner.manifest.schema import Manifest
from runner.manifest.sources.folder import inner_folders
from runner.manifest.sources.open import open_prompts
from runner.manifest.sources.paired import Paired, images_by_name
from runner.manifest.sources.prompt_list import PromptList
from runner.manifest.sources.spec import File
from runner.manifest.suggestions import nearest
from runner.manifest.words import MAX_VALUE, dotted, explain
from runner.manifest.yaml_tree import Node, document, set_value
from runner.model.input_names import is_input
from runner.say import cut
from runner.settings import KeyFault
from runner.units import first_few

__all__ = ["Loaded", "Parsed", "load", "parse"]

MAX_BYTES = 256 << 20  # of a manifest
SET = "--set "
PNG_START = b"\x89PNG\r\n"
LORA_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
ONE_FILE = (".safetensors", ".gguf", ".ckpt")  # no hub ID ends like these


@dataclass(frozen=True, slots=True)
class Loaded:
    """A manifest with its prompts; those of a file are read from it when they are needed."""

    manifest: Manifest
    prompts: PromptList
    path: Path
    root: Node  # of the manifest's file, for the lines in later messages
    remarks: tuple[Problem, ...] = ()  # what is no fault, but may not be what its author means


class Parsed(NamedTuple):
    """A manifest without its prompt file."""

    manifest: Manifest
    root: Node
    remarks: tuple[Problem, ...]


def load(path: Path, sets: Sequence[str] = (), text: str | None = None) -> Loaded:
    """Read a manifest and its prompt file. `sets` are --set arguments, which override it; `text` is
    the manifest where it does not stand in a file of its own, but comes from `path`.

    Raises ManifestError with every problem of the manifest, then of the prompt files.
    """
    manifest, root, remarks = parse(path, sets, text)
    manifest = _with_model_path(manifest, root, path.parent)
    manifest = _with_controlnet_path(manifest, root, path.parent)
    manifest = _with_lora_paths(manifest, root, path.parent)
    files = _prompt_files(manifest.prompts, root, path.parent)
    remarks += tuple(_left_out(files, root))
    start = None if manifest.inputs else path.parent
    prompts = open_prompts(manifest.prompts, files, root, start)
    if manifest.images is not None:
        prompts = _paired(manifest, prompts, root, path.parent)
    manifest = _with_inputs(manifest, root, path.parent, has_own=prompts.names_input)
    return Loaded(manifest, prompts, path, root, remarks)


def _prompt_files(prompts: Any, root: Node, folder: Path) -> list[Path]:
    """The file of each source that has one, in order. Raises ManifestError."""
    is_list = isinstance(prompts, tuple)
    found, problems = list[Path](), list[Problem]()
    for number, item in enumerate(prompts if is_list else (prompts,)):
        if isinstance(item, File):
            key = ("prompts", number, "file") if is_list else ("prompts", "file")
            found.append(_path(root, key, folder, item.file))
            place, is_file = root.walk(key).place, found[-1].is_file()
            if not found[-1].exists():
                problems.append(Problem(place, f"no prompt file {found[-1].resolve()}"))
            elif not (is_file or found[-1].is_dir()):  # reading a FIFO would block
                problems.append(Problem(place, f"{found[-1].resolve()}: not a file"))
            elif not is_file and (given := item.model_fields_set & {"format", "sha256"}):
                words = f"{min(given)} is for a file, and {item.file} is a folder; remove it"
                problems.append(Problem(place, f"{dotted(key)}: {words}"))
            elif item.sha256 and item.sha256 != (sha256 := _sha256(found[-1])):
                words = f"{dotted(key)}: {item.file}: its SHA-256 is {sha256}, not {item.sha256}; "
                words += "take the file that belongs to this manifest, or remove sha256"
                problems.append(Problem(place, words))
    if problems:
        raise ManifestError(problems)
    return found


def _left_out(files: Sequence[Path], root: Node) -> Iterator[Problem]:
    """Of folders of text files: those inside them, which nobody reads."""
    for path in files:
        if path.is_dir() and (inner := inner_folders(path)):
            words = f"{path}: the .txt files in its folders are left out ({first_few(inner)}); name"
            remedy = f"{words} each folder as a source of its own, as in - file: {path / inner[0]}"
            yield Problem(root.walk(("prompts",)).place, remedy)


def _sha256(path: Path) -> str:
    """Raises ManifestError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ManifestError([Problem(str(path), error.strerror or str(error))]) from None


def _with_model_path(manifest: Manifest, root: Node, folder: Path) -> Manifest:
    """With the full path of a local model."""
    name = manifest.model.id
    path = _path(root, ("model", "id"), folder, name)
    if name == "demo":
        return manifest
    if path.is_file() or (path.suffix.lower() in ONE_FILE and not path.is_dir()):
        message = f"model.id: {cut(name, MAX_VALUE)}: {_advice(path)}"
        raise ManifestError([Problem(root.walk(("model", "id")).place, message)])
    if not (_is_path(name) or path.is_dir()):
        return manifest
    spec = manifest.model.model_copy(update={"id": str(path.resolve())})
    return manifest.model_copy(update={"model": spec})


def _with_controlnet_path(manifest: Manifest, root: Node, folder: Path) -> Manifest:
    """With its full path. Raises ManifestError where there is no such folder."""
    if manifest.model.controlnet is None:
        return manifest
    key = ("model", "controlnet")
    path = _path(root, key, folder, manifest.model.controlnet).resolve()
    if not path.is_dir():
        message = f"model.controlnet: no folder {path}; download it there first"
        raise ManifestError([Problem(root.walk(key).place, message)])
    spec = manifest.model.model_copy(update={"controlnet": str(path)})
    return manifest.model_copy(update={"model": spec})


def _paired(manifest: Manifest, prompts: PromptList, root: Node, folder: Path) -> PromptList:
    """Prompts with the images of the manifest's folders. Raises ManifestError."""
    start = _path(root, ("inputs",), folder, manifest.inputs or "")
    given = manifest.images.model_dump(exclude_none=True) if manifest.images else {}
    found: dict[str, dict[str, str]] = {}
    for parameter, name in given.items():
        own, place = _path(root, ("images",), start, name), root.walk(("images", parameter)).place
        if not own.is_dir():
            raise ManifestError([Problem(place, f"images: no folder {own.resolve()}")])
        try:
            found[parameter] = images_by_name(own, name)
        except ValueError as error:
            raise ManifestError([Problem(place, f"images: {error}")]) from None
    return Paired(prompts, found)


def _with_lora_paths(manifest: Manifest, root: Node, folder: Path) -> Manifest:
    """With the full paths of local LoRAs. Raises ManifestError for a file that is not there."""
    loras = []
    for number, lora in enumerate(manifest.loras):
        key = ("loras", number, "id")
        path = _path(root, key, folder, lora.id)
        is_local = _is_path(lora.id) or path.exists() or path.suffix.lower() in LORA_FILES
        if lora.id == "demo" or not is_local:
            loras.append(lora)
        elif not path.exists():
            message = (
                f"loras[{number}]: {cut(lora.id, MAX_VALUE)}: no file or folder {path.resolve()}"
            )
            raise ManifestError([Problem(root.walk(key).place, message)])
        else:
            # Not the name of a link's target.
            named = {"id": str(path.resolve()), "name": lora.own_name}
            loras.append(lora.model_copy(update=named))
    return manifest.model_copy(update={"loras": loras})


def _with_inputs(manifest: Manifest, root: Node, folder: Path, *, has_own: bool) -> Manifest:
    """With the full path of the folder where those of input images start; without any for a job
    that has no input images. `has_own`: a prompt has one."""
    axes = {} if manifest.sweep is None else {**manifest.sweep.product, **manifest.sweep.zip}
    used = has_own or names_input(manifest.parameters) or any(map(is_input, axes))
    found = _path(root, ("inputs",), folder, manifest.inputs or "")
    if manifest.inputs and not found.is_dir():
        message = f"inputs: no folder {found.resolve()}"
        raise ManifestError([Problem(root.walk(("inputs",)).place, message)])
    update = {"inputs": str(found.resolve()) if used else None}
    return manifest.model_copy(update=update)


def _advice(path: Path) -> str:
    """What to do with a model that is one file."""
    kind = path.suffix.lower()
    if kind == ".gguf":
        return "one part of a model; name the hub ID or the folder of the whole model"
    if kind not in ONE_FILE:
        return "is a file; a model is a folder, a hub ID or demo"
    call = f"from_single_file({path.name!r}).save_pretrained({path.stem!r})"
    return (
        f"a model in one file, and the runner takes a folder; make one with the class of its "
        f"pipeline, as in diffusers.StableDiffusionXLPipeline.{call}"
    )


def _path(root: Node, key: tuple[int | str, ...], folder: Path, name: str) -> Path:
    """An input path, relative to the manifest. Raises ManifestError for an impossible one."""
    try:
        path = folder / Path(name).expanduser()
        path.resolve().is_file()
        if "\0" in name:
            raise ValueError("a NUL byte")
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{dotted(key)}: {name[:60]!r}: {reason}"
        raise ManifestError([Problem(root.walk(key).place, message)]) from None
    return path


def _is_path(model_id: str) -> bool:
    return model_id.startswith(("/", "./", "../", "~")) or model_id in (".", "..")


def parse(path: Path, sets: Sequence[str] = (), text: str | None = None) -> Parsed:
    """The manifest without its prompt file, and its tree, for the lines in later messages.

    Raises ManifestError with every problem.
    """
    root, problems, remarks = document(_read(path) if text is None else text, str(path))
    for assignment in sets:
        set_value(root, assignment)
    if not isinstance(root.value, dict):
        raise ManifestError([Problem(root.place, "a manifest is a mapping: model: …, prompts: …")])
    faults: list[_Fault] = []
    try:
        manifest = Manifest.model_validate(root.plain())
    except ValidationError as error:
        faults = [_Fault(root, fault) for fault in error.errors(include_url=False)]
    if problems or faults:
        raise _refusal(problems, faults)
    return Parsed(manifest, root, tuple(remarks))


class _Fault:
    """A fault that pydantic found, and where the file has it."""

    def __init__(self, root: Node, fault: ErrorDetails) -> None:
        self.details = fault
        self.node, self.path, self.place = root.walk(fault["loc"])
        error = fault.get("ctx", {}).get("error")
        if isinstance(error, KeyFault):
            self.place = root.walk((*fault["loc"], error.key)).place

    def problem(self) -> Problem:
        words = explain(Manifest, self.details, self.path, self.node.text)
        if self.place.startswith(SET) and 'quote it: "' in words:  # a shell takes quotes away
            key, _, value = self.place.removeprefix(SET).partition("=")
            quoted = shlex.quote(f'{key}="{value}"')
            words = f"{words.partition('; quote it: ')[0]}; write {SET}{quoted}"
        return Problem(self.place, words)


def _refusal(problems: Sequence[Problem], faults: Sequence[_Fault]) -> ManifestError:
    """All problems in the order of the file. To put a fault into words takes long, so it is done
    only for those that are shown."""
    # pydantic counts the good prompts; each bad one has a fault of its own.
    known = [f for f in faults if not (f.details["type"] == "too_short" and f.details["input"])]
    known.sort(key=lambda fault: _line(fault.place))
    said = dict.fromkeys(problems)
    rest = 0
    for fault in known:
        if len(said) < len(problems) + ManifestError.shown:
            said[fault.problem()] = None
        else:
            rest += 1
    return ManifestError(sorted(said, key=lambda problem: _line(problem.place)), rest)


def _nearest_file(path: Path) -> str:
    """ "; did you mean job.yaml?" for a file that is missing; empty where none is near."""
    folder = path.parent
    if path.exists() or not folder.is_dir():
        return ""
    names = (child.name for child in folder.iterdir() if child.suffix in (".yaml", ".yml"))
    return nearest(path.name, {name.lower(): str(folder / name) for name in names})


def _line(place: str) -> tuple[str, int]:
    name, _, line = place.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (place, 0)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if data.startswith(PNG_START):
            message = f"is an image; make it again: runner remake {shlex.quote(str(path))}"
            raise ManifestError([Problem(str(path), message)])
        if len(data) > MAX_BYTES:
            message = f"more than {MAX_BYTES >> 20} MiB; put the prompts into a file of their own"
            raise ManifestError([Problem(str(path), message)])
        return data.decode("utf-8-sig")
    except OSError as error:
        message = (error.strerror or str(error)) + _nearest_file(path)
        raise ManifestError([Problem(str(path), message)]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        message = f"not UTF-8 (byte {error.object[error.start]:#04x}); save the file as UTF-8"
        raise ManifestError([Problem(f"{path}:{line}", message)]) from None
