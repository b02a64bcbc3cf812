"""What a model is, by its files: equal for a copy in another place, another for other weights.

Weights may be replaced in place by others of the same names, shapes and sizes. Reading them whole
would take as long as loading them. So of every tensor a few blocks are read, which any training,
merging or scaling changes.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.model.json_file import fault, read_bytes
from runner.model.pipeline_index import INDEX, index_of
from runner.model.safetensors_header import header_bytes, spans
from runner.model.spec import ModelSpec
from runner.model.weight_files import PICKLES, WEIGHTS

__all__ = ["CONFIGS", "changed_files", "digests", "file_digest", "identity"]

CONFIGS = (".json", ".txt", ".model", ".jinja")

BLOCK = 4096  # bytes
BLOCKS = 4  # of a tensor
BLOCKS_OF_A_PICKLE = 256  # its tensors are not known
END_OF_A_PICKLE = 1 << 20  # bytes; a pickle is a zip, whose end has a checksum of each tensor
MOST_OF_A_FILE = 64 << 20  # bytes; of a file with very many tensors the blocks are smaller
SMALLEST_BLOCK = 64
THREADS = 16  # most of the time is waiting for a disk


def identity(spec: ModelSpec, known: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a fingerprint holds of the model. A hub model counts by its commit, the bundled one by
    its configs and the headers of its weights, another folder also by its weights. `known` is what
    `digests` returned, if it was called already. Raises ModelError."""
    variant = {"variant": spec.variant} if spec.variant else {}
    if spec.controlnet:
        variant["controlnet"] = _digest_of_folder(Path(spec.controlnet))
    if spec.folder is None:
        return {"id": spec.id, "revision": spec.revision, **variant}
    try:
        names = {"files": _names(spec, spec.folder), **variant}
    except OSError as error:
        raise fault(Path(error.filename or spec.folder), error) from None
    if spec.is_bundled:
        return names
    found = digests(spec) if known is None else known
    contents = "".join(
        f"{digest} {name}\n" for name, digest in found.items() if not name.endswith(CONFIGS)
    )
    return {**names, "contents": hashlib.sha256(contents.encode()).hexdigest()}


def digests(spec: ModelSpec) -> dict[str, str]:
    """File → hash, for the files of a local folder that a fingerprint depends on: configs whole,
    weights by their headers and a few blocks of each tensor. Nothing for other models. Raises
    ModelError."""
    folder = spec.folder
    if folder is None or spec.is_bundled:
        return {}
    kinds = (*CONFIGS, *WEIGHTS, *((".py",) if spec.trust_remote_code else ()))
    paths = [path for path in _files(spec, folder) if path.suffix in kinds]
    if spec.trust_remote_code:
        paths += sorted(folder.glob("*.py"))
    from concurrent.futures import ThreadPoolExecutor  # the demo model needs none

    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(file_digest, paths)
        names = [path.relative_to(folder).as_posix() for path in paths]
        return dict(zip(names, found, strict=True))


def changed_files(before: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """The files that differ; none where all do: that is another model."""
    names = sorted({*before, *now})
    changed = [name for name in names if before.get(name) != now.get(name)]
    return changed if len(changed) < len(names) else []


def _digest_of_folder(folder: Path) -> str:
    """Of its configs, and of what is in its weights."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in (*CONFIGS, *WEIGHTS))
    except OSError as error:
        raise fault(folder, error) from None
    lines = "".join(f"{file_digest(path)} {path.name}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


def _files(spec: ModelSpec, folder: Path) -> Iterator[Path]:
    """The files of a model, in an order that does not depend on the disk."""
    yield folder / INDEX
    for component in sorted(name for name in index_of(folder, spec.id) if name[0] != "_"):
        yield from sorted(path for path in (folder / component).rglob("*") if path.is_file())


def _names(spec: ModelSpec, folder: Path) -> str:
    """A hash of the configs, and of the weights' names, sizes and headers. Fingerprints hold it:
    any change of it makes all finished images look changed."""
    digest = hashlib.sha256()
    for path in _files(spec, folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix in CONFIGS:
            digest.update(f"{name}\n".encode())
            digest.update(read_bytes(path))
        elif path.suffix in WEIGHTS:
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            if path.suffix == ".safetensors":
                digest.update(header_bytes(path))
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Of a config whole, of weights by the header and a few blocks of each tensor. Raises
    ModelError."""
    if path.suffix not in WEIGHTS:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    try:
        return _digest_of_weights(path)
    except OSError as error:
        raise fault(path, error) from None


def _digest_of_weights(path: Path) -> str:
    size, found = path.stat().st_size, hashlib.sha256()
    if path.suffix == ".safetensors":
        found.update(header_bytes(path))
        places = [(tensor.start, tensor.end) for tensor in spans(path).values()]
        blocks = BLOCKS
    else:
        last = max(0, size - END_OF_A_PICKLE)
        places, blocks = [(0, last)], BLOCKS_OF_A_PICKLE
    most = MOST_OF_A_FILE // (blocks * max(1, len(places)))
    length = max(SMALLEST_BLOCK, min(BLOCK, most))
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):  # no reading ahead: the next block is far away
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for start, end in places:
            for offset in _offsets(start, end, blocks, length):
                found.update(os.pread(file.fileno(), min(length, end - offset), offset))
        if path.suffix in PICKLES:
            found.update(os.pread(file.fileno(), END_OF_A_PICKLE, places[0][1]))
    return found.hexdigest()


def _offsets(start: int, end: int, blocks: int, length: int) -> Iterator[int]:
    """Where to read blocks of a span: all of it if it is short, else evenly from end to end."""
    if end - start <= blocks * length:
        yield from range(start, end, length)
        return
    for number in range(blocks):
        yield start + (end - length - start) * number // (blocks - 1)
