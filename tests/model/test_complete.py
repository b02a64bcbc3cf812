"""What a model's folder must have before anything loads; each fault is one line."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from support import tiny

from runner.errors import ModelError
from runner.model import files as model
from runner.model import json_file
from runner.model.complete import without_variant
from runner.model.configs import ModelConfigs
from runner.model.requirements import needed_packages, required_components
from runner.model.spec import ModelSpec
from runner.model.weights import component_bytes

Change = Callable[[Path], Any]
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
SHARDS = [f"diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
INDEX = "transformer/diffusion_pytorch_model.safetensors.index.json"


@pytest.fixture
def copy(flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(flux, tmp_path / "model"))


def spec(folder: Path, **values: Any) -> ModelSpec:
    return ModelSpec(id=str(folder), **values)


def refusal(folder: Path, **values: Any) -> str:
    """The one line with which the folder is refused."""
    with pytest.raises(ModelError) as caught:
        model.local_folder(spec(folder, **values))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def edit(name: str, **values: Any) -> Change:
    return lambda folder: tiny.edit_json(folder / name, **values)


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def pipe(folder: Path) -> None:
    (folder / "model_index.json").unlink()
    os.mkfifo(folder / "model_index.json")


def huge(name: str) -> Change:
    return lambda folder: os.truncate(folder / name, 30 << 30)


DEEP = b'{"a": ' * 100_000


# Cases 44 and 46.
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (edit("model_index.json", _class_name=None), "names no pipeline class"),
        (edit("model_index.json", _class_name=5), "names no pipeline class"),
        (edit("model_index.json", _class_name=[]), "names no pipeline class"),
        (edit("model_index.json", _class_name=["a"]), "names no pipeline class"),
        (edit("model_index.json", _class_name=""), "names no pipeline class"),
        (edit("model_index.json", transformer=None), "FluxPipeline needs transformer, which its"),
        (edit("model_index.json", transformer=[None, None]), "FluxPipeline needs transformer"),
        (edit("model_index.json", transformer=["diffusers"]), "transformer must be [library, cl"),
        (edit("model_index.json", transformer=["diffusers", 5]), "transformer must be [library"),
        (edit("model_index.json", transformer=["", "X"]), "transformer must be [library, class]"),
        (edit("model_index.json", transformer=[5, "X"]), "transformer must be [library, class]"),
        (edit("model_index.json", vae=["diffusers", "export_to_gif"]), "has no export_to_gif of"),
        (edit("model_index.json", vae=["diffusers", "Gone"]), "has no Gone of diffusers"),
        (edit("model_index.json", vae=["wuerstchen", "Vq"]), "has no Vq of wuerstchen; install"),
        (edit("model_index.json", vae=["a/b", "Vq"]), "has no Vq of a/b; install the version"),
        (edit("model_index.json", **{"/etc": ["a", "b"]}), "'/etc' cannot be the name of a comp"),
        (edit("model_index.json", vae=["a\nb", "X"]), "vae must be [library, class]"),
        (edit("model_index.json", **{"..": ["a", "b"]}), "'..' cannot be the name of a component"),
        (write("model_index.json", b"[]"), "must be a JSON object"),
        (write("model_index.json", b"\xff\xfe"), "cannot be read"),
        (write("model_index.json", DEEP), "nested too deep"),
        (write("model_index.json", b'{"_class_name": ' + b"1" * 10_000 + b"}"), "cannot be read"),
        (write("vae/config.json", b"{"), "vae/config.json: cannot be read"),
        (write("vae/config.json", b"[1]"), "vae/config.json: must be a JSON object"),
        (write("scheduler/scheduler_config.json", DEEP), "scheduler_config.json: cannot be read"),
        (huge("vae/config.json"), "has 30,720 MiB, and a config has 64 at most"),
        (huge("model_index.json"), "has 30,720 MiB, and a config has 64 at most"),
        (pipe, "model_index.json: is not a plain file"),
    ],
)
def test_json_of_another_form(copy: Path, change: Change, wanted: str) -> None:
    change(copy)
    assert wanted in refusal(copy)


def test_a_huge_file_is_not_read_for_the_identity_either(copy: Path) -> None:
    os.truncate(copy / "tokenizer" / "tokenizer.json", 30 << 30)
    with pytest.raises(ModelError, match=r"tokenizer.json: has 30,720 MiB"):
        model.identity(spec(copy))


def test_a_pipe_in_place_of_a_config(copy: Path) -> None:
    (copy / "vae" / "config.json").unlink()
    os.mkfifo(copy / "vae" / "config.json")
    with pytest.raises(ModelError, match=r"config.json: is not a plain file"):
        ModelConfigs.read(copy)
    assert "vae lacks config.json" in refusal(copy)


def test_settings_in_the_index_are_no_components(copy: Path) -> None:
    values = {"is_distilled": True, "layers": [9, 18], "ratio": 0.5, "name": "x", "none": None}
    tiny.edit_json(copy / "model_index.json", image_encoder=[None, None], **values)
    assert model.local_folder(spec(copy)) == copy


def split(folder: Path) -> dict[str, str]:
    """The transformer's weights in two shards; returns tensor → file."""
    values = load_file(folder / TRANSFORMER)
    (folder / TRANSFORMER).unlink()
    names = sorted(values)
    shards = {name: SHARDS[place % 2] for place, name in enumerate(names)}
    for shard in SHARDS:
        part = {name: values[name] for name in names if shards[name] == shard}
        save_file(part, folder / "transformer" / shard, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    return shards


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (write(INDEX, b'{"weight_map"'), "index.json: cannot be read"),
        (write(INDEX, b"[]"), "index.json: must be a JSON object"),
        (write(INDEX, b"\xff"), "index.json: cannot be read"),
        (write(INDEX, DEEP), "index.json: cannot be read: nested too deep"),
        (write(INDEX, b"{}"), "must have a weight_map, tensor to file"),
        (write(INDEX, b'{"weight_map": {"a": 5}}'), "must have a weight_map, tensor to file"),
        (write(INDEX, b'{"weight_map": ["a"]}'), "must have a weight_map, tensor to file"),
        (write(INDEX, b'{"weight_map": {"a": "/etc/passwd"}}'), "must have a weight_map"),
        (write(INDEX, b'{"weight_map": {"a": "../x"}}'), "must have a weight_map"),
        (remove(INDEX), "transformer lacks diffusion_pytorch_model.safetensors.index.json"),
        (remove(f"transformer/{SHARDS[1]}"), f"transformer lacks {SHARDS[1]}"),
    ],
)
def test_an_index_of_shards(copy: Path, change: Change, wanted: str) -> None:
    split(copy)
    assert model.local_folder(spec(copy)) == copy
    change(copy)
    assert wanted in refusal(copy)


def test_a_tensor_that_its_shard_lacks(copy: Path) -> None:
    shards = split(copy)
    (copy / INDEX).write_text(json.dumps({"weight_map": {**shards, "extra": SHARDS[0]}}))
    assert f"{SHARDS[0]}: lacks the tensor 'extra' that" in refusal(copy)


# Case 41: a truncated file stopped a run again and again.
@pytest.mark.parametrize("name", [TRANSFORMER, "text_encoder/model.safetensors"])
@pytest.mark.parametrize("more", [-1, 7])
def test_weights_of_another_size(copy: Path, name: str, more: int) -> None:
    size = (copy / name).stat().st_size
    os.truncate(copy / name, size + more)
    words = refusal(copy)
    assert f"{name}: has {size + more:,} bytes, and its header says {size:,}; it " in words
    assert words.endswith("download the model again")


# Case 53: without tokenizer.json transformers makes an empty tokenizer, without a word.
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (remove("tokenizer/tokenizer.json"), "tokenizer lacks tokenizer.json or "),
        (lambda folder: shutil.rmtree(folder / "tokenizer_2"), "tokenizer_2 lacks tokenizer.json"),
        (remove("text_encoder/config.json"), "text_encoder lacks config.json"),
        (remove("vae/config.json"), "vae lacks config.json"),
        (remove("scheduler/scheduler_config.json"), "scheduler lacks scheduler_config.json"),
        (remove("text_encoder/model.safetensors"), "text_encoder has no weights"),
        (
            lambda folder: (folder / TRANSFORMER).rename(folder / "transformer/my.safetensors"),
            "transformer has no weights",
        ),
    ],
)
def test_files_that_a_component_needs(copy: Path, change: Change, wanted: str) -> None:
    change(copy)
    assert wanted in refusal(copy)


@pytest.mark.parametrize(
    ("class_name", "files", "wanted"),
    [
        ("CLIPTokenizer", ["vocab.json", "merges.txt"], ""),
        ("CLIPTokenizerFast", ["tokenizer.json"], ""),
        ("CLIPTokenizer", ["vocab.json"], "lacks tokenizer.json or vocab.json and merges.txt"),
        ("Qwen2Tokenizer", [], "lacks tokenizer.json or vocab.json and merges.txt"),
        ("BertTokenizer", ["vocab.txt"], ""),
        ("T5TokenizerFast", ["vocab.txt"], "lacks tokenizer.json or spiece.model"),
        ("T5Tokenizer", ["spiece.model"], "pip install sentencepiece protobuf"),
        ("ByT5Tokenizer", [], ""),
    ],
)
def test_what_a_tokenizer_is_made_from(
    copy: Path, class_name: str, files: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.model.complete.is_there", lambda module: False)
    tiny.edit_json(copy / "model_index.json", tokenizer=["transformers", class_name])
    (copy / "tokenizer" / "tokenizer.json").unlink()
    for name in files:
        (copy / "tokenizer" / name).write_text("{}")
    if wanted:
        assert wanted in refusal(copy)
    else:
        assert model.local_folder(spec(copy)) == copy


# Case 12.
@pytest.mark.parametrize(
    ("config", "method", "package"),
    [
        ({"quant_method": "torchao"}, "torchao", "torchao"),
        ({"quant_method": "quanto"}, "quanto", "optimum-quanto"),
        ({"load_in_4bit": True}, "bitsandbytes", "bitsandbytes"),
    ],
)
def test_quantized_weights_without_their_package(
    copy: Path, config: dict[str, Any], method: str, package: str
) -> None:
    tiny.edit_json(copy / "transformer" / "config.json", quantization_config=config)
    wanted = f"with {method}, which needs {package}; install it: pip install {package}"
    assert f"transformer is quantized {wanted}" in refusal(copy)


# Case 13: PRX uses ftfy without asking whether it is there; Wan asks.
def test_packages_of_a_pipelines_code() -> None:
    assert needed_packages("PRXPipeline") == ["ftfy"]
    for name in ("WanPipeline", "FluxPipeline", "PixArtSigmaPipeline", "NoSuchPipeline"):
        assert needed_packages(name) == []
    assert required_components("StableDiffusionPipeline") == [
        *("vae", "text_encoder", "tokenizer", "unet", "scheduler")
    ]
    assert required_components("NoSuchPipeline") == []


def test_a_pipeline_whose_package_is_not_there(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.model.packages.is_there", lambda module: False)
    words = refusal(copy)
    assert "FluxPipeline needs transformers" in words
    assert "; install it: pip install " in words
    assert json_file.AGAIN not in words


def rename(folder: Path, change: Callable[[str], str], but: str = "") -> None:
    for path in folder.rglob("*.safetensors"):
        if path.parent.name != but:
            path.rename(path.with_name(change(path.name)))


def to_fp16(name: str) -> str:
    return name.replace(".safetensors", ".fp16.safetensors")


# Case 59.
def test_variants(copy: Path) -> None:
    assert "no variant fp16; variants: none" in refusal(copy, variant="fp16")
    rename(copy, to_fp16, but="vae")
    assert model.local_folder(spec(copy, variant="fp16")) == copy
    assert without_variant(spec(copy, variant="fp16"), copy) == ["vae"]
    assert without_variant(spec(copy), copy) == []
    wanted = f"has weights of the variant fp16 only; write model: {{id: {copy}, variant: fp16}}"
    assert wanted in refusal(copy)
    assert "no variant bf16; variants: fp16" in refusal(copy, variant="bf16")


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_pytorch_model.fp16-0000{}-of-00002.safetensors",
        "diffusion_pytorch_model-0000{}-of-00002.fp16.safetensors",
    ],
)
def test_shards_of_a_variant(copy: Path, name: str) -> None:
    shards = split(copy)
    names = {shard: name.format(place) for place, shard in enumerate(SHARDS, 1)}
    for old, new in names.items():
        (copy / "transformer" / old).rename(copy / "transformer" / new)
    index = copy / INDEX.replace(".json", ".fp16.json")
    (copy / INDEX).rename(index)
    index.write_text(json.dumps({"weight_map": {key: names[old] for key, old in shards.items()}}))
    assert model.local_folder(spec(copy, variant="fp16")) == copy
    (copy / "transformer" / name.format(2)).unlink()
    assert f"transformer lacks {name.format(2)}" in refusal(copy, variant="fp16")


def test_components_may_be_links(flux: Path, tmp_path: Path) -> None:
    """Models share parts, such as a text encoder."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in flux.iterdir():
        (folder / path.name).symlink_to(path)
    assert model.local_folder(spec(folder)) == folder
    assert model.identity(spec(folder)) == model.identity(spec(flux))
    assert component_bytes(spec(folder), "float32") == component_bytes(spec(flux), "float32")
