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


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {"shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [1, 4]}}',
        b'{"a": {"dtype": 5, "shape": [1], "data_offsets": null}}',
        b'{"a": "\xff"}',
        b'{"a\\nb": 1}',
    ],
)
def test_a_header_of_another_form(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ModelError, match="model.safetensors: .*download the model again$"):
        tensors(path)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(-1, "has 207 bytes, and its header says 208; it was cut off"), (5, "has something added")],
)
def test_a_file_of_another_size_than_its_header_says(weights: Path, size: int, wanted: str) -> None:
    data = weights.read_bytes() + bytes(5)
    weights.write_bytes(data[: len(data) - 5 + size])
    with pytest.raises(ModelError, match=wanted):
        tensors(weights)


def test_a_pointer_of_git_lfs(weights: Path) -> None:
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match="is a pointer of Git LFS.*git lfs pull"):
        tensors(weights)


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
    names = hashlib.sha256(b"".join(hashed)).hexdigest()
    weights_hash = hashlib.sha256(header_bytes(file) + bytes(24) + bytes(32)).hexdigest()
    pickle_hash = hashlib.sha256(b"abc").hexdigest()
    lines = f"{weights_hash} vae/model.safetensors\n{pickle_hash} vae/old.bin\n"
    contents = hashlib.sha256(lines.encode()).hexdigest()
    found = model.identity(ModelSpec(id=str(folder)))
    assert found == {"files": names, "contents": contents}


def test_the_identity_of_the_bundled_model_is_that_of_the_first_release() -> None:
    assert set(model.identity(ModelSpec(id="demo"))) == {"files"}
