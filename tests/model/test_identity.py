"""Which changes of a model folder make it another model."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.numpy import load_file, save_file

from runner.errors import ModelError
from runner.model import files as model
from runner.model import identity
from runner.model.spec import ModelSpec

TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
TEXTS = "text_encoder/model.safetensors"


@pytest.fixture
def copy(flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(flux, tmp_path / "model"))


def spec(folder: Path, **values: bool) -> ModelSpec:
    return ModelSpec(id=str(folder), **values)


def scale(path: Path, chosen: int) -> None:
    """Scale one tensor in place: names, shapes and sizes stay."""
    values = load_file(path)
    name = sorted(values)[chosen]
    save_file({**values, name: values[name] * 1.01 + 0.001}, path, metadata={"format": "pt"})


def touch(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


def save_again(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        save_file(load_file(path), path, metadata={"format": "pt"})


def document(folder: Path) -> None:
    (folder / "README.md").write_text("new words")


@pytest.mark.parametrize("change", [touch, save_again, document])
def test_what_is_no_change(copy: Path, flux: Path, change: Callable[[Path], None]) -> None:
    before = model.identity(spec(flux))
    assert model.identity(spec(copy)) == before
    change(copy)
    assert model.identity(spec(copy)) == before


# Case 6.
@pytest.mark.parametrize("file", [TRANSFORMER, TEXTS])
@pytest.mark.parametrize("chosen", [0, 7, -1])
def test_a_tensor_that_was_scaled_in_place(copy: Path, file: str, chosen: int) -> None:
    before, digests = model.identity(spec(copy)), model.digests(spec(copy))
    scale(copy / file, chosen)
    after = model.identity(spec(copy))
    assert after["files"] == before["files"]
    assert after != before
    assert model.changed_files(digests, model.digests(spec(copy))) == [file]


def test_two_shards_that_were_swapped(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text('{"_class_name": "X", "unet": ["diffusers", "Y"]}')
    one, two = (tmp_path / "unet" / f"m-0000{n}-of-00002.safetensors" for n in (1, 2))
    for number, path in enumerate((one, two)):
        save_file({"a": numpy.full((100, 100), number, "float32")}, path)
    before = model.identity(spec(tmp_path))
    one.rename(tmp_path / "x")
    two.rename(one)
    (tmp_path / "x").rename(two)
    assert model.identity(spec(tmp_path)) != before


# A pickle is a zip with a checksum of each tensor at its end.
def test_a_tensor_of_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text('{"_class_name": "X", "unet": ["diffusers", "Y"]}')
    path = tmp_path / "unet" / "diffusion_pytorch_model.bin"
    values = {str(n): torch.ones(200_000) * n for n in range(10)}
    torch.save(values, path)
    before = model.identity(spec(tmp_path))
    torch.save(values, path)
    assert model.identity(spec(tmp_path)) == before
    values["5"][123_456] = 1.5
    torch.save(values, path)
    assert model.identity(spec(tmp_path)) != before


def test_code_of_the_model_counts_where_it_runs(copy: Path) -> None:
    before = [model.identity(spec(copy, trust_remote_code=trust)) for trust in (False, True)]
    for name in ("pipeline.py", "transformer/mine.py"):
        (copy / name).write_text("a = 1")
        assert model.identity(spec(copy)) == before[0]
        after = model.identity(spec(copy, trust_remote_code=True))
        assert after not in before
        before.append(after)


def test_another_model_has_no_changed_files() -> None:
    assert model.changed_files({"a": "1", "b": "2"}, {"a": "3", "b": "4"}) == []
    assert model.changed_files({"a": "1", "b": "2"}, {"a": "1", "c": "4"}) == ["b", "c"]
    assert model.changed_files({}, {"a": "1"}) == []


def test_few_bytes_are_read_of_large_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of many tensors: 60 GB must take less than two seconds."""
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text('{"_class_name": "X", "unet": ["diffusers", "Y"]}')
    values = {str(number): numpy.zeros(100_000, "float32") for number in range(100)}
    save_file(values, tmp_path / "unet" / "m.safetensors")
    read, pread = list[int](), os.pread

    def counted(file: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(file, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    model.identity(spec(tmp_path))
    assert sum(read) == 100 * identity.BLOCKS * identity.BLOCK
    monkeypatch.setattr(identity, "MOST_OF_A_FILE", 100_000)
    read.clear()
    model.identity(spec(tmp_path))
    assert sum(read) <= 100_000


def test_weights_that_were_cut_off_have_no_identity(copy: Path) -> None:
    data = (copy / TEXTS).read_bytes()
    (copy / TEXTS).write_bytes(data[:-1])
    with pytest.raises(ModelError, match=f"{TEXTS}: has .* it was cut off"):
        model.identity(spec(copy))
