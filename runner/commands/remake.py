"""The `remake` command: an image → a manifest of that one image → the image again.

What an image says is data: it goes through the checks of every manifest. Permissions to run code,
and the place of a model on this machine, come from the command line alone.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import LaunchError, ModelError
from runner.folder.png import call_in, read_text
from runner.manifest.input_images import InputFaultError, InputFiles, inputs_of
from runner.manifest.load import Loaded, load, parse
from runner.manifest.resolve import dump, to_yaml
from runner.model import files as model
from runner.model.lora_files import identities
from runner.model.signature import SETUP
from runner.say import cut
from runner.units import first_few

__all__ = ["compared", "manifest_text", "remake", "threads_of"]

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
SEED = re.compile(r"\d{1,20}", re.ASCII)
MODEL_SET = re.compile(r"model(\.id)?=(?P<name>[^{].*)")
LORA_SET = re.compile(r"loras\.(?P<name>[\w-]+)=(?P<file>.+)", re.ASCII)
MOST_THREADS = 1024


def remake(image: Path, sets: Sequence[str], output: Path | None) -> tuple[Loaded, Path]:
    """The manifest that makes one image again, and its output folder. Raises RefusedError."""
    text = _texts(image)
    sets, files = _without_loras([_with_full_path(assignment) for assignment in sets])
    values = _values(image, text)
    if loras := _loras(image, text, files):
        values["loras"] = loras
    is_named = any(assignment.partition("=")[0] in ("model", "model.id") for assignment in sets)
    if "id" not in values["model"] and not is_named:
        name = cut(str(_object(image, text, "model").get("id")), 80)
        raise LaunchError(
            f"{image}: was made with a model in a local folder, {Path(name).name}; name that "
            f"folder: --set model=DIR"
        )
    lacks_controlnet = "controlnet" in _object(image, text, "model") and not any(
        assignment.startswith("model.controlnet=") for assignment in sets
    )
    if lacks_controlnet:
        raise LaunchError(
            f"{image}: was made with a ControlNet; name its folder: --set model.controlnet=DIR"
        )
    sums = _object(image, text, "inputs")
    _refuse_unknown_inputs(image, values["parameters"], sums)
    if sums and not any(assignment.startswith("inputs=") for assignment in sets):
        values["inputs"] = _folder_of_inputs(image, [*sums])
    loaded = load(image, sets, to_yaml(values))
    if not is_named:
        _refuse_folder(image, values["model"]["id"], loaded)
    _check_model(image, _object(image, text, "model"), loaded)
    _check_inputs(image, sums, loaded, sets)
    _check_loras(image, text, loaded)
    name = hashlib.sha256("\n".join([to_yaml(values), *sets]).encode()).hexdigest()[:8]
    return loaded, output or Path("outputs") / "remade" / f"{image.stem}-{name}"


def manifest_text(loaded: Loaded, image: Path) -> str:
    """The manifest as a file, from which `runner run` makes the same."""
    return f"# Remade from {image.name}\n{dump(loaded.manifest)}".rstrip("\n")


def threads_of(image: Path) -> int | None:
    """With how many threads the image was made on a CPU: low bits depend on it."""
    threads = _object(image, _texts(image), "made").get("threads")
    return threads if type(threads) is int and 0 < threads <= MOST_THREADS else None


def compared(image: Path, output: Path, loaded: Loaded) -> tuple[bool, str]:
    """Whether the new image is the old one, as far as both were made from the same; and in
    words."""
    from runner.render.comparison import compare_files

    with (output / "metadata.jsonl").open(encoding="utf-8") as lines:
        new = output / json.loads(next(lines))["file_name"]
    before, now = _texts(image), _texts(new)
    if before["fingerprint"] != now["fingerprint"]:
        return True, f"{new}: made with other settings than {image}, so it is another image"
    found = compare_files(image, new, loaded.manifest.dtype)
    other = _differences(_object(image, before, "made"), _object(new, now, "made"))
    other += _differences(_object(image, before, "versions"), _object(new, now, "versions"))
    why = f" ({'; '.join(other)})" if other and found.verdict != "exact" else ""
    return found.verdict != "different", f"{new}: {found}{why}, beside {image}"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What was otherwise when the first image was made, as far as it may matter."""
    names = sorted(before.keys() & now.keys() - {"seconds", "reproducibility_reason"})
    return [
        f"{name} {cut(str(before[name]), 40)}, now {now[name]}"
        for name in names
        if before[name] != now[name]
    ]


def _texts(image: Path) -> dict[str, str]:
    try:
        text = read_text(image) if image.is_file() else None
    except OSError as error:
        raise LaunchError(f"{image}: {error.strerror}") from None
    if text is None:
        missing = "no such file" if not image.exists() else "is not a PNG that can be read"
        raise LaunchError(f"{image}: {missing}")
    if not {"prompt", "seed", "model", "dtype", "fingerprint"} <= text.keys():
        raise LaunchError(
            f"{image}: does not say how it was made; only images that the runner wrote do, as long "
            f"as no other program saved them anew"
        )
    return text


def _object(image: Path, text: Mapping[str, str], key: str) -> dict[str, Any]:
    """A text that is a JSON object. Raises LaunchError for any other."""
    try:
        value = json.loads(text.get(key, "{}"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise LaunchError(f"{image}: its text {key} is damaged, so it cannot be made again")
    return value


def _values(image: Path, text: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of one image."""
    spec, made = _object(image, text, "model"), _object(image, text, "made")
    call = _object(image, {"call": call_in(text)}, "call")
    own = {"meta": _object(image, text, "meta"), "id": text.get("id")}
    setup = {name: call.pop(name) for name in SETUP if name in call}
    setup.pop("loras", None)  # their weights go to the LoRAs themselves
    prompt = {"prompt": text["prompt"], **{key: value for key, value in own.items() if value}}
    is_known = spec.get("id") == "demo" or HUB_ID.fullmatch(str(spec.get("id")))
    is_named = is_known and "contents" not in spec
    names = ("id", "revision", "variant") if is_named else ("variant",)
    return {
        "model": {name: spec[name] for name in names if spec.get(name) is not None},
        "dtype": text["dtype"],
        **({"pipeline": text["pipeline"]} if "pipeline" in text else {}),
        **({"compile": True} if made.get("compiled") is True else {}),
        "seed": int(text["seed"]) if SEED.fullmatch(text["seed"]) else text["seed"],
        "parameters": call,
        **setup,
        "prompts": [prompt],
    }


def _folder_of_inputs(image: Path, files: Sequence[str]) -> str:
    """Where the paths of an image's input images start: as the output folder that it lies in has
    noted. Raises LaunchError."""
    for folder in image.resolve().parents:
        recorded = folder / "manifest.yaml"
        if recorded.is_file() and (folder / ".runner").is_dir():
            found = parse(recorded).manifest.inputs
            if found and Path(found).is_dir():
                return found
    raise LaunchError(
        f"{image}: was made from {first_few(files)}; name the folder where this path starts: "
        f"--set inputs=DIR"
    )


def _check_inputs(
    image: Path, sums: Mapping[str, Any], loaded: Loaded, sets: Sequence[str]
) -> None:
    """Raises LaunchError for input images that are not there, or hold something else than those the
    image was made from."""
    if any(assignment.startswith("parameters.") for assignment in sets):
        return  # which may name others
    files = InputFiles(loaded.manifest.inputs)
    for file, expected in sums.items():
        try:
            is_other = files.sha256(file) != expected
        except InputFaultError as error:
            raise LaunchError(
                f"{image}: its input image {files.path(file)}: {error}; name the folder where "
                f"{file} starts: --set inputs=DIR"
            ) from None
        if is_other:
            raise LaunchError(
                f"{image}: {files.path(file)} is not the image that it was made from; name the "
                f"folder that has it: --set inputs=DIR"
            )


def _without_loras(sets: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The other assignments; and those of `loras.NAME=FILE`: name → full path."""
    found = {one: LORA_SET.fullmatch(one) for one in sets}
    files = {
        match["name"]: os.path.abspath(Path(match["file"]).expanduser())
        for match in found.values()
        if match
    }
    return [one for one, match in found.items() if not match], files


def _loras(image: Path, text: Mapping[str, str], files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The LoRAs of an image, as its manifest names them. Raises LaunchError where a local one is
    not named."""
    found = _object(image, text, "loras")
    weights = _object(image, {"call": call_in(text)}, "call").get("loras", {})
    loras = []
    for name, spec in found.items():
        is_known = spec.get("id") == "demo" or (
            "contents" not in spec and HUB_ID.fullmatch(str(spec.get("id")))
        )
        if name in files:
            own = {"id": files[name]}
        elif is_known:
            own = {key: spec[key] for key in ("id", "file", "revision") if spec.get(key)}
        else:
            file = cut(Path(str(spec.get("id"))).name, 80)
            raise LaunchError(
                f"{image}: was made with a LoRA in a local file, {file}; name it: --set "
                f"loras.{name}=FILE"
            )
        loras.append({**own, "name": name, "weight": weights.get(name, 1.0)})
    return loras


def _check_loras(image: Path, text: Mapping[str, str], loaded: Loaded) -> None:
    """Raises ModelError for a file that holds another LoRA than the image's."""
    now = identities(loaded.manifest.loras)
    for name, spec in _object(image, text, "loras").items():
        found = now.get(name, {})
        if any(spec.get(key) != value for key, value in found.items()):
            raise ModelError(
                f"loras.{name}: is not the LoRA that made {image}; name that one: --set "
                f"loras.{name}=FILE"
            )


def _with_full_path(assignment: str) -> str:
    """`model=DIR` with a path relative to where the user stands; the rest of the model's keys stay
    as the image has them. So with other folders."""
    key, _, value = assignment.partition("=")
    if key in ("inputs", "model.controlnet"):
        return f"{key}={json.dumps(os.path.abspath(Path(value).expanduser()))}"
    found = MODEL_SET.fullmatch(assignment)
    if found is None:
        return assignment
    name = found["name"]
    folder = Path(name).expanduser()
    return f"model.id={json.dumps(os.path.abspath(folder) if folder.is_dir() else name)}"


def _refuse_unknown_inputs(image: Path, call: Mapping[str, Any], sums: Mapping[str, Any]) -> None:
    """Raises LaunchError for an input image without a checksum: it could be any file of this
    machine."""
    unknown = [file for _, file in inputs_of(call) if isinstance(file, str) and file not in sums]
    if unknown:
        raise LaunchError(
            f"{image}: does not say what was in its input image {cut(unknown[0], 80)}, so it "
            f"cannot be made again"
        )


def _refuse_folder(image: Path, name: str, loaded: Loaded) -> None:
    """Raises LaunchError where a folder beside the image has the name of its model on the hub."""
    spec = loaded.manifest.model
    if spec.folder is not None and not spec.is_bundled:
        raise LaunchError(
            f"{image}: was made with {name} of the hub, and a folder has the same name, "
            f"{spec.folder}; to use that one: --set model=DIR"
        )


def _check_model(image: Path, recorded: Mapping[str, Any], loaded: Loaded) -> None:
    """Raises ModelError for a folder that holds another model than the image's."""
    spec = loaded.manifest.model
    if spec.folder is None or "files" not in recorded:
        return
    now = model.identity(spec)
    for name, what in {"files": "configs or shapes of weights", "contents": "weights"}.items():
        if recorded.get(name) != now.get(name):
            raise ModelError(
                f"{spec.id}: is not the model that made {image}: other {what}; name the folder of "
                f"that one: --set model=DIR"
            )
