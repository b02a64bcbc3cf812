"""Whether a model's folder has all that its pipeline needs, before anything loads. No torch."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from runner.errors import ModelError
from runner.model.json_file import AGAIN, read_json
from runner.model.packages import check_packages, is_there
from runner.model.pipeline_index import INDEX, components_of, index_of
from runner.model.requirements import defines, exports, is_pipeline_module, required_components
from runner.model.safetensors_header import tensors
from runner.model.source import installed
from runner.model.spec import ModelSpec
from runner.model.weight_files import WeightFile, index_name, to_read, weight_files
from runner.units import install_line

__all__ = ["check_code", "check_files", "check_names", "names_in", "without_variant"]

LIBRARIES = ("diffusers", "transformers")
WITHOUT_WEIGHTS = re.compile("Tokenizer|Processor|Extractor|Scheduler|Guider|^Mel$|^Onnx|^Flax")

# The files that a tokenizer is made from in place of tokenizer.json, by its class; any of them for
# other classes. Without them transformers makes an empty tokenizer.
TOKENIZERS = {
    "CLIP": ("vocab.json", "merges.txt"),
    "GPT2": ("vocab.json", "merges.txt"),
    "Qwen2": ("vocab.json", "merges.txt"),
    "Roberta": ("vocab.json", "merges.txt"),
    "XLMRoberta": ("sentencepiece.bpe.model",),
    "Bert": ("vocab.txt",),
    "T5": ("spiece.model",),
    "UMT5": ("spiece.model",),
    "Gemma": ("tokenizer.model",),
    "Llama": ("tokenizer.model",),
    "ChatGLM": ("tokenizer.model",),
}
BYTES_ALONE = ("ByT5",)  # tokenizers without a vocabulary


def check_files(spec: ModelSpec, folder: Path) -> None:
    """Raises ModelError for what a load would stop at, or take for something else: code or pickles
    that are not allowed, missing files, damaged ones, packages that are not installed."""
    index = index_of(folder, spec.id)
    names = names_in(folder)
    check_code(spec, index, names)
    check_names(spec, index, names)
    for name in names:
        if re.fullmatch(r"[^/]+/(\w+_)?config\.json", name):
            read_json(folder / name)
    check_packages(index, folder, spec.id)
    for component in components_of(index):
        _check_weights(spec, folder, component, names)


def names_in(folder: Path) -> list[str]:
    """The files of a model and of its components, whose folders may be links."""
    paths = (path for pattern in ("*", "*/*") for path in folder.glob(pattern))
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]


def check_names(spec: ModelSpec, index: Mapping[str, Any], names: Iterable[str]) -> None:
    """The same, as far as the names of all files show it."""
    known, components = {*names}, components_of(index)
    for component, (library, class_name) in components.items():
        if library in LIBRARIES or is_pipeline_module(library):
            own = {name.partition("/")[2] for name in known if name.startswith(f"{component}/")}
            _check_component(spec, component, class_name, own)
    weights = {component: weight_files(known, component) for component in components}
    read = {
        component: to_read(files, spec.variant, allow_pickle=spec.allow_pickle)
        for component, files in weights.items()
    }
    if spec.variant and not any(file.variant for files in read.values() for file in files):
        found = {file.variant for files in weights.values() for file in files if file.variant}
        raise ModelError(
            f"{spec.id}: no variant {spec.variant}; variants: {', '.join(sorted(found)) or 'none'}"
        )
    for component, (_, class_name) in components.items():
        if not read[component]:
            _refuse_without(spec, component, class_name, weights[component])
        for file in read[component]:
            name = index_name(file)
            if file.is_shard and f"{component}/{name}" not in known:
                raise ModelError(f"{spec.id}: {component} lacks {name}; {AGAIN}")


def without_variant(spec: ModelSpec, folder: Path) -> list[str]:
    """The components whose plain weights are read, since they have none of the variant asked."""
    if spec.variant is None:
        return []
    names = names_in(folder)
    return [
        component
        for component in components_of(index_of(folder, spec.id))
        if any(not f.variant for f in to_read(weight_files(names, component), spec.variant))
    ]


def _check_component(spec: ModelSpec, component: str, class_name: str, own: set[str]) -> None:
    """Its config, and what a tokenizer is made from."""
    for choices in _needs(class_name):
        if not any({*choice} <= own for choice in choices):
            words = " or ".join(" and ".join(choice) for choice in choices)
            raise ModelError(f"{spec.id}: {component} lacks {words}; {AGAIN}")
    if "Tokenizer" in class_name and "tokenizer.json" not in own:
        made_from = next((name for name in own if name.endswith(".model")), None)
        lacking = [name for name in ("sentencepiece", "google.protobuf") if not is_there(name)]
        if made_from and lacking:
            raise ModelError(
                f"{spec.id}: {component} has {made_from} in place of tokenizer.json, which takes "
                f"other packages to read; install them: {install_line('sentencepiece', 'protobuf')}"
            )


def _needs(class_name: str) -> Iterator[list[tuple[str, ...]]]:
    """The files that a component needs: of each list one set."""
    if class_name.endswith("Scheduler"):
        yield [("scheduler_config.json",)]
    elif "Tokenizer" in class_name:
        yield from _tokenizer_needs(class_name.partition("Tokenizer")[0])
    elif re.search("Processor|Extractor", class_name):
        yield [("preprocessor_config.json",), ("processor_config.json",)]
    elif not WITHOUT_WEIGHTS.search(class_name):
        yield [("config.json",)]


def _tokenizer_needs(kind: str) -> Iterator[list[tuple[str, ...]]]:
    if kind not in BYTES_ALONE:
        made_from = [TOKENIZERS[kind]] if kind in TOKENIZERS else {*TOKENIZERS.values()}
        yield [("tokenizer.json",), *sorted(made_from)]


def _refuse_without(
    spec: ModelSpec, component: str, class_name: str, files: Iterable[WeightFile]
) -> None:
    """Raises ModelError for a network without weights that may be read."""
    others = sorted({file.variant for file in files if file.variant})
    pickles = [file.name for file in files if file.suffix != ".safetensors"]
    if WITHOUT_WEIGHTS.search(class_name):
        return
    if pickles and not spec.allow_pickle:
        raise ModelError(
            f"{spec.id}: {component} has pickled weights only ({', '.join(pickles)}); pickles can "
            f"run code: allow them with model: {{allow_pickle: true}}"
        )
    if others:
        raise ModelError(
            f"{spec.id}: {component} has weights of the variant {' or '.join(others)} only; write "
            f"model: {{id: {spec.id}, variant: {others[0]}}}"
        )
    raise ModelError(f"{spec.id}: {component} has no weights; {AGAIN}")


def _check_weights(spec: ModelSpec, folder: Path, component: str, names: Iterable[str]) -> None:
    """Every file that is read is there and whole, and has the tensors that its index says."""
    read = to_read(weight_files(names, component), spec.variant, allow_pickle=spec.allow_pickle)
    found = {
        file.name: tensors(folder / component / file.name)
        for file in read
        if file.suffix == ".safetensors"
    }
    for name in sorted({index_name(file) for file in read if file.is_shard}):
        shards = _weight_map(folder / component / name)
        lacking = sorted({*shards.values()} - {file.name for file in read})
        if lacking:
            raise ModelError(f"{spec.id}: {component} lacks {', '.join(lacking)}; {AGAIN}")
        for tensor, file in shards.items():
            if file in found and tensor not in found[file]:
                raise ModelError(
                    f"{folder / component / file}: lacks the tensor {tensor[:80]!r} that {name} "
                    f"names; {AGAIN}"
                )


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor → file. Raises ModelError."""
    found = read_json(path).get("weight_map")
    if isinstance(found, dict) and found and all(map(_is_file_name, found.values())):
        return found
    raise ModelError(f"{path}: must have a weight_map, tensor to file; {AGAIN}")


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and PurePosixPath(value).name == value


def check_code(spec: ModelSpec, index: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a pipeline or a component whose class is in the model's own Python files, and what
    diffusers does not have."""
    if spec.trust_remote_code:
        return
    pipeline, components, known = index["_class_name"], components_of(index), {*names}
    if not isinstance(pipeline, str):
        raise _code(spec, f"its pipeline is code of its own ({pipeline[0]}.py)")
    for component, (library, class_name) in components.items():
        if f"{component}/{library}.py" in known:
            raise _code(spec, f"{component} is code of its own ({library})")
        if not _has_class(library, class_name):
            raise ModelError(
                f"{spec.id}: {component}: diffusers {installed()} has no {class_name[:80]} of "
                f"{library[:80]}; install the version that the model was made with"
            )
    lacking = [part for part in required_components(pipeline) if part not in components]
    if lacking:
        raise ModelError(
            f"{spec.id}: {pipeline} needs {', '.join(lacking)}, which its {INDEX} lacks; {AGAIN}"
        )


def _code(spec: ModelSpec, what: str) -> ModelError:
    return ModelError(f"{spec.id}: {what}, which runs only with model: {{trust_remote_code: true}}")


def _has_class(library: str, class_name: str) -> bool:
    """Whether the class can be imported; of transformers' classes only the load knows."""
    if library == "transformers":
        return class_name.isidentifier()
    if library == "diffusers":
        return exports(class_name)
    return is_pipeline_module(library) and defines(library, class_name)
