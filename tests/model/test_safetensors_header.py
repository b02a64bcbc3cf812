"""The header of a safetensors file: its own bytes, and the tensors that it names."""

import hashlib
import json
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from runner.errors import ModelError
from runner.model import files as model
from runner.model.safetensors_header import header_bytes, tensors
from runner.model.spec import ModelSpec


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    values = {"a": numpy.zeros((2, 3), "float32"), "b": numpy.zeros(4, "int64")}
    save_file(values, path, metadata={"format": "pt"})
    return path


def test_a_header_names_the_tensors(weights: Path) -> None:
    assert tensors(weights) == {"a": ("F32", [2, 3]), "b": ("I64", [4])}
    length = int.from_bytes(weights.read_bytes()[:8], "little")
    assert header_bytes(weights) == weights.read_bytes()[8 : 8 + length]
    assert json.loads(header_bytes(weights))["__metadata__"] == {"format": "pt"}


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x09" + b"\0" * 7 + b'{"a": 1', b"\xff" * 20])
def test_a_file_that_has_no_header(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="model.safetensors: cannot be read: .*download"):
        tensors(path)
    with pytest.raises(ModelError, match="No such file"):
        tensors(tmp_path / "none.safetensors")


def test_the_identity_of_a_model_does_not_drift(tmp_path: Path, weights: Path) -> None:
    """Another hash would make every finished image of every user look changed."""
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "X", "vae": ["diffusers", "Y"]}')
    file = weights.rename(folder / "vae" / weights.name)
    (folder / "vae" / "old.bin").write_bytes(b"abc")
    hashed = (
        b"model_index.json\n" + (folder / "model_index.json").read_bytes(),
        f"vae/model.safetensors {file.stat().st_size}\n".encode() + header_bytes(file),
        b"vae/old.bin 3\n",
    )
    wanted = hashlib.sha256(b"".join(hashed)).hexdigest()
    assert model.identity(ModelSpec(id=str(folder))) == {"files": wanted}
