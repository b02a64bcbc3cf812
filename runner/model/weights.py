"""How many bytes each component's weights take, from the headers of its files: no weight is read or
downloaded."""

import math
from collections.abc import Mapping

from runner.errors import ModelError
from runner.model import files as model
from runner.model import safetensors_header
from runner.model.complete import names_in
from runner.model.spec import ModelSpec
from runner.model.weight_files import to_read, weight_files
from runner.units import DTYPE_BYTES

__all__ = ["component_bytes"]

FLOATS = {"F64", "F32", "F16", "BF16"}  # these take the manifest's dtype, the rest stay
OWN_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}

Tensors = Mapping[str, tuple[str, list[int]]]  # name → dtype and shape, as the header has them


def component_bytes(spec: ModelSpec, dtype: str) -> dict[str, int]:
    """Bytes by component, in the dtype that they will have once loaded. Of a hub model only the
    headers of its files are fetched.

    Raises ModelError without safetensors, OfflineError without cache and network.
    """
    folder = model.local_folder(spec)
    index = model.index_of(folder, spec.id) if folder else model.configs(spec).index
    names = model.hub_files(spec) if folder is None else names_in(folder)

    def header(name: str) -> Tensors:
        if folder is not None:
            return safetensors_header.tensors(folder / name)
        return model.hub_header(spec, name)

    read = {
        name: [f"{name}/{file.name}" for file in to_read(weight_files(names, name), spec.variant)]
        for name in index
    }
    headers = {name: [header(file) for file in files] for name, files in read.items() if files}
    sizes = {name: sum(_bytes(header, dtype) for header in of) for name, of in headers.items()}
    if not sizes:
        raise ModelError(
            f"{spec.id}: no safetensors, so its size is not known before it loads; choose another "
            f"strategy than auto, and leave --devices out"
        )
    return sizes


def _bytes(tensors: Tensors, dtype: str) -> int:
    return sum(
        math.prod(shape) * (DTYPE_BYTES[dtype] if kind in FLOATS else OWN_BYTES.get(kind, 1))
        for kind, shape in tensors.values()
    )
