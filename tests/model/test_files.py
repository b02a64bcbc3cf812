"""Model ID → files: what is refused, in which words, before anything loads."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from support import tiny

from runner.errors import ExitCode, InterruptedRunError, ModelError, OfflineError
from runner.model import files as model
from runner.model.spec import ModelSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def copy(flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(flux, tmp_path / "model"))


def spec(folder: Path | str, **values: Any) -> ModelSpec:
    return ModelSpec(id=str(folder), **values)


def test_a_folder_is_taken_as_it_is(copy: Path) -> None:
    assert model.local_folder(spec(copy)) == copy
    assert model.configs(spec(copy)).folder == copy
    assert model.resolve(spec(copy)) is None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder; a model is a folder, a hub ID"),
        (lambda folder: (folder / "model_index.json").unlink(), "no model_index.json in"),
        (lambda folder: (folder / "model_index.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "model_index.json").write_text("{}"), "names no pipeline class"),
        (
            lambda folder: (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink(),
            "vae has no weights",
        ),
    ],
)
def test_folders_that_are_no_model(copy: Path, change: Callable[[Path], None], wanted: str) -> None:
    change(copy)
    with pytest.raises(ModelError, match=wanted):
        model.local_folder(spec(copy))


# Case 49: all shards of an index must be there.
def test_a_missing_shard_is_named(copy: Path) -> None:
    weights = copy / "transformer" / "diffusion_pytorch_model.safetensors"
    first, second = (f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2))
    weights.rename(weights.with_name(first))
    index = weights.with_name("diffusion_pytorch_model.safetensors.index.json")
    index.write_text(f'{{"weight_map": {{"a": "{first}", "b": "{second}"}}}}')
    with pytest.raises(ModelError, match=f"transformer lacks {second}"):
        model.local_folder(spec(copy))


# Case 53.
def test_pickles_need_leave(copy: Path) -> None:
    weights = copy / "text_encoder" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(ModelError, match=r"text_encoder .*\(pytorch_model.bin\).*allow_pickle"):
        model.local_folder(spec(copy))
    assert model.local_folder(spec(copy, allow_pickle=True)) == copy


@pytest.mark.parametrize(
    "change",
    [{"_class_name": ["pipeline", "Mine"]}, {"transformer": ["mine", "Transformer"]}],
)
def test_code_of_the_model_needs_leave(copy: Path, change: dict[str, Any]) -> None:
    tiny.edit_json(copy / "model_index.json", **change)
    marker = copy / "marker"
    for name in ("pipeline.py", "transformer/mine.py"):
        (copy / name).write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(ModelError, match="code of its own.*trust_remote_code: true"):
        model.local_folder(spec(copy))
    assert not marker.exists()


def test_identity_is_configs_and_weights_not_the_place(copy: Path, flux: Path) -> None:
    first = model.identity(spec(flux))
    assert model.identity(spec(copy)) == first
    (copy / "README.md").write_text("new words")
    assert model.identity(spec(copy)) == first
    tiny.edit_json(copy / "vae" / "config.json", scaling_factor=0.5)
    assert model.identity(spec(copy)) != first
    assert model.identity(ModelSpec(id="a/b", revision=COMMIT)) == {
        "id": "a/b",
        "revision": COMMIT,
    }


def response(status: int) -> httpx.Response:
    return httpx.Response(
        status,
        request=httpx.Request("GET", "https://hub/x", headers={"authorization": "hf_SECRET"}),
    )


def failed(status: int) -> errors.HfHubHTTPError:
    return errors.HfHubHTTPError("hf_SECRET", response=response(status))


def caused(status: int) -> errors.LocalEntryNotFoundError:
    """How a download reports what the hub answered."""
    error = errors.LocalEntryNotFoundError("hf_SECRET")
    error.__cause__ = failed(status)
    return error


FAULTS = {
    "gated; accept its terms": errors.GatedRepoError("hf_SECRET", response=response(403)),
    "no such model on the hub": errors.RepositoryNotFoundError("hf_SECRET", response=response(404)),
    "or the token is not valid; log in again: hf auth login": failed(401),
    "this token may not read it; log in again": failed(403),
    "no such model on the hub, or private": failed(404),
    "the token is not valid": caused(401),
    "this token may not": caused(403),
    "refused the question (HTTP 418)": failed(418),
    "not in the cache, and what answered was not the hub (a proxy": json.JSONDecodeError(
        "hf_SECRET", "<html>hf_SECRET", 0
    ),
    "not in the cache, and what answered was not the hub": KeyError("hf_SECRET"),
    "cannot be downloaded: no file of hf_…": ValueError("no file of hf_SECRET\nhf_SECRET"),
    "no revision v9": errors.RevisionNotFoundError("hf_SECRET", response=response(404)),
    "cannot be reached (ConnectError)": httpx.ConnectError("hf_SECRET"),
    "cannot be reached (OfflineModeIsEnabled)": errors.OfflineModeIsEnabled("hf_SECRET"),
    "cannot be reached (LocalEntryNotFoundError)": errors.LocalEntryNotFoundError("hf_SECRET"),
}


# Case 51: each in words of its own, and never the token.
@pytest.mark.parametrize("wanted", FAULTS)
def test_ways_not_to_get_a_model(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any, **__: Any) -> None:
        raise FAULTS[wanted]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    with pytest.raises(ModelError) as caught:
        model.resolve(ModelSpec(id="owner/name", revision="v9"))
    assert wanted in str(caught.value)
    assert "hf_SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, OfflineError) == wanted.startswith(
        ("cannot be reached", "not in")
    )


# Case 48: what may pass is asked again, and is no refusal.
@pytest.mark.parametrize("error", [failed(429), failed(503), caused(502)])
def test_a_hub_that_may_answer_later(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, waited = list[str](), list[float]()

    def ask(*_: Any, **__: Any) -> SimpleNamespace:
        asked.append("")
        if len(asked) % 4:
            raise error
        return SimpleNamespace(sha=COMMIT)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(InterruptedRunError, match="run the same command again later") as caught:
        model.resolve(ModelSpec(id="owner/name"))
    assert caught.value.exit_code == ExitCode.INCOMPLETE
    assert "hf_SECRET" not in str(caught.value)
    assert (len(asked), waited) == (3, [2.0, 8.0])
    assert model.resolve(ModelSpec(id="owner/name")) == COMMIT


def test_the_hub_may_ask_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    error, waited = failed(429), list[float]()
    error.response.headers["Retry-After"] = "30"

    def ask(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(InterruptedRunError, match="asks to wait"):
        model.resolve(ModelSpec(id="owner/name"))
    assert waited == [30.0, 30.0]


# Case 59: diffusers' own errors led to a traceback, or to "cannot be reached".
@pytest.mark.parametrize(
    ("suffix", "variant", "wanted"),
    [
        ("", "fp16", "owner/name: no variant fp16; variants: none"),
        (".fp16", "bf16", "owner/name: no variant bf16; variants: fp16"),
        (".fp16", None, r"of the variant fp16 only; write model: {id: owner/name, variant: fp16}"),
    ],
)
def test_variants_on_the_hub(
    flux: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, variant: str | None, wanted: str
) -> None:
    names = [path.relative_to(flux).as_posix() for path in flux.rglob("*") if path.is_file()]
    siblings = [
        SimpleNamespace(rfilename=name.replace(".safetensors", f"{suffix}.safetensors"))
        for name in names
    ]
    info = SimpleNamespace(siblings=siblings)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(flux))
    with pytest.raises(ModelError, match=re.escape(wanted) if variant is None else wanted):
        model.download(ModelSpec(id="owner/name", revision=COMMIT, variant=variant))


def test_a_word_that_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("a/b/c", "owner/na me", "owner//name"):
        with pytest.raises(ModelError, match="neither a folder nor a hub ID"):
            model.resolve(ModelSpec(id=name))


@pytest.fixture
def cache(flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds the tiny model as owner/name, and no network."""
    home = tmp_path / "hub"
    repo = home / "models--owner--name"
    shutil.copytree(flux, repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))

    def ask(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", ask)
    return repo / "snapshots" / COMMIT


def test_a_cached_model_makes_no_network_call(cache: Path) -> None:
    named = ModelSpec(id="owner/name")
    assert model.resolve(named) == COMMIT
    pinned = ModelSpec(id="owner/name", revision=COMMIT)
    assert model.resolve(pinned) == COMMIT
    assert model.local_folder(pinned) == cache
    assert model.configs(pinned).folder == cache


def test_an_unfinished_download_is_no_model(cache: Path) -> None:
    (cache / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    assert model.local_folder(ModelSpec(id="owner/name", revision=COMMIT)) is None
