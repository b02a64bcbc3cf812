"""Phases against one call of the pipeline: the same images, sizes and flags, or a refusal."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import phased_families as families
from support import tiny
from support.bench import PHASES, Bench
from support.phased_families import PARAMETERS, call, plain, source_of

from runner.errors import ExitCode
from runner.model.configs import ModelConfigs
from runner.render.load import ModelSource
from runner.render.noise import Noise
from runner.strategies.checks.phases import fault_of_phases
from runner.strategies.engines.phases import PhasedPipeline
from runner.strategies.engines.placement import alone_on

CPU = torch.device("cpu")


def calls(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Made anew for each pipeline, for its generators."""
    wide = {**parameters, "width": 96}
    return [call(1, "a red fox in the snow", **parameters), call(2, "a cat", **wide)]


def phased(source: ModelSource) -> PhasedPipeline:
    pipe = PhasedPipeline(source, alone_on(CPU), CPU)
    pipe.set_progress_bar_config(disable=True)
    pipe.around_call = Noise(pipe.pipe, tuple(pipe.pipe.components), CPU).of  # as a run sets it
    return pipe


def difference(one: Any, other: Any) -> float:
    assert one.shape == other.shape
    return float((one.float() - other.float()).abs().max())


@pytest.mark.parametrize("family", PARAMETERS)
def test_phases_make_what_the_call_makes(family_folder: Any, family: str) -> None:
    source = source_of(family_folder(family))
    assert fault_of_phases(ModelConfigs.read(source.folder)) == ""
    whole, parts = plain(source), phased(source)
    expected = [whole(**one) for one in calls(PARAMETERS[family])]
    parts.prepare(calls(PARAMETERS[family]))
    found = [parts(**one) for one in calls(PARAMETERS[family])]
    for one, other in zip(expected, found, strict=True):
        assert difference(one.images, other.images) <= 1e-6
        assert vars(one).keys() == vars(other).keys()


def test_phases_cut_an_image_to_the_size_asked(family_folder: Any) -> None:
    """Sana too, above: its call makes 512×512 of it, and cuts that."""
    found = phased(source_of(family_folder("pixart")))(**call(1, "a cat", **PARAMETERS["pixart"]))
    assert found.images.shape[-2:] == (64, 64)


@pytest.mark.parametrize("is_flagged", [True, False])
def test_phases_ask_the_safety_checker(family_folder: Any, is_flagged: bool) -> None:
    parts = phased(source_of(family_folder("sd-checked")))
    load = parts.source.component

    def component(name: str, **arguments: Any) -> Any:
        found = load(name, **arguments)
        if name == "safety_checker":
            found.concept_embeds_weights.data.fill_(-1.0 if is_flagged else 2.0)
        return found

    parts.source = SimpleNamespace(  # type: ignore[assignment]
        component=component, dtype=torch.float32, folder=parts.source.folder
    )
    made = parts(**call(1, "a cat", **PARAMETERS["sd-checked"]))
    assert made.nsfw_content_detected == [is_flagged]
    assert bool(made.images.any()) != is_flagged


def test_phases_decode_in_float32_where_the_call_does(family_folder: Any) -> None:
    """SDXL in float16: the call sets the VAE's dtype, decodes, and sets it back."""
    source = source_of(family_folder("sdxl"), "float16")
    whole, parts = plain(source), phased(source)
    for seed in (1, 2):
        one = call(seed, "a cat", **PARAMETERS["sdxl"])
        other = call(seed, "a cat", **PARAMETERS["sdxl"])
        assert difference(whole(**one).images, parts(**other).images) <= 1e-3


def test_tiles_help_where_there_is_no_memory_to_decode(
    family_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every image of a window: what was raised before the tiles is not raised again after them, and
    nothing but the decoding is repeated."""
    from diffusers import AutoencoderKL

    decode, loads = AutoencoderKL.decode, []

    def needs_tiles(self: Any, *given: Any, **named: Any) -> Any:
        if not self.use_tiling:
            raise torch.OutOfMemoryError
        return decode(self, *given, **named)

    source = source_of(family_folder("flux"))
    expected = [plain(source)(**one).images for one in calls(PARAMETERS["flux"])]
    monkeypatch.setattr(AutoencoderKL, "decode", needs_tiles)
    parts = phased(source)
    component = ModelSource.component
    monkeypatch.setattr(
        ModelSource,
        "component",
        lambda self, name, **others: loads.append(name) or component(self, name, **others),
    )
    parts.prepare(calls(PARAMETERS["flux"]))
    with pytest.raises(torch.OutOfMemoryError):
        parts(**calls(PARAMETERS["flux"])[0])
    parts.vae.enable_tiling()
    found = [parts(**one).images for one in calls(PARAMETERS["flux"])]
    assert [image.shape for image in found] == [image.shape for image in expected]
    assert loads.count("transformer") == loads.count("text_encoder_2") == 1


def test_a_job_of_phases_goes_on_with_tiles(
    manifest: Any, flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import AutoencoderKL

    bench = Bench(manifest, flux, tmp_path)

    decode = AutoencoderKL.decode

    def needs_tiles(self: Any, *given: Any, **named: Any) -> Any:
        if not self.use_tiling:
            raise torch.OutOfMemoryError
        return decode(self, *given, **named)

    monkeypatch.setattr(AutoencoderKL, "decode", needs_tiles)
    bench.values.update(strategy=PHASES, on_out_of_memory="tile")
    assert bench.run() is ExitCode.COMPLETE
    records = [json.loads(line) for line in (bench.output / "metadata.jsonl").open()]
    assert all("vae tiling" in record["degraded"] for record in records)


def test_a_pipeline_that_uses_its_parts_otherwise_is_refused(tmp_path: Path) -> None:
    cases = {
        "StableDiffusionSAGPipeline": "looks into its denoiser from outside",
        "StableDiffusionGLIGENPipeline": "uses its text_encoder outside of the phase for it",
        "SemanticStableDiffusionPipeline": "has no encode_prompt",
        "AnimateDiffPipeline": "does not decode in one place",
    }
    for name, words in cases.items():
        folder = families.save("sd", tmp_path / name)
        tiny.edit_json(folder / "model_index.json", _class_name=name)
        assert words in fault_of_phases(ModelConfigs.read(folder)), name
    folder = families.save("sd", tmp_path / "more")
    (folder / "prior").mkdir()
    (folder / "prior" / "config.json").write_text('{"a": 1}')
    tiny.edit_json(folder / "model_index.json", prior=["diffusers", "PriorTransformer"])
    assert "in which phase" in fault_of_phases(ModelConfigs.read(folder))
