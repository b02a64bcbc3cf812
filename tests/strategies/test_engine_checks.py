"""xDiT and ParaAttention where neither package is needed: settings, and what is refused in time."""

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import tiny

from runner.cli import main
from runner.errors import StrategyError
from runner.launch.layout import Layout
from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies import Conditions, ParaAttention, XDit
from runner.strategies.engines.xdit_models import MODELS

SMALL = {"height": 64, "width": 64, "max_sequence_length": 16, "num_inference_steps": 2}
EVEN = "a red fox in the snow"  # with Qwen-Image's template 16 tokens


@pytest.fixture
def plan_words(manifest: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> Any:
    """What `plan --world-size N` says, and its exit code."""

    def words(model: Path, strategy: Any, world_size: int, **values: Any) -> tuple[int, str]:
        values = {"parameters": SMALL, "prompts": [EVEN], **values}
        path = manifest(model=str(model), strategy=strategy, **values)
        code = main(["plan", str(path), "--world-size", str(world_size)])
        said = capsys.readouterr()
        return code, said.out + said.err

    return words


def xdit(**degrees: Any) -> dict[str, Any]:
    return {"kind": "xdit", **{f"{name}_degree": degree for name, degree in degrees.items()}}


REFUSED = [
    ("flux", xdit(ulysses=2), 3, {}, "ulysses 2 × ring 1 × pipefusion 1 × cfg 1 = 2 ranks"),
    ("flux", xdit(ulysses=3), 3, {}, "does not divide the 4 attention heads"),
    ("flux", xdit(cfg=2), 2, {}, "takes no cfg_degree over 1"),
    ("flux", xdit(pipefusion=3), 3, {}, "leaves no block for the last stage"),
    ("flux", {**xdit(ring=2), "attention_backend": "sdpa"}, 2, {}, "does not work with ring"),
    ("flux", xdit(ring=2), 2, {}, "take no float32"),
    ("flux", {**xdit(ulysses=2), "attention_backend": "cudnn"}, 2, {}, "takes no float32"),
    ("flux", xdit(ulysses=2), 2, {"parameters": {**SMALL, "height": 48}}, "is 3 rows of latents"),
    (
        "flux",
        xdit(ulysses=2),
        2,
        {"parameters": {**SMALL, "max_sequence_length": 15}},
        "the text has 15 tokens",
    ),
    (
        "flux",
        xdit(pipefusion=2),
        2,
        {"parameters": {**SMALL, "true_cfg_scale": 2.0}},
        "true_cfg_scale: xfuser's FluxPipeline ignores it",
    ),
    ("qwen", xdit(pipefusion=2), 2, {}, "takes no pipefusion_degree over 1"),
    ("qwen", xdit(ulysses=2), 2, {"prompts": ["a red fox"]}, "has 13 tokens"),
    ("qwen", xdit(ulysses=2), 2, {"batch_size": 2}, "ignores the mask"),
    ("qwen", {"kind": "para_attn", "ulysses_degree": 2}, 2, {"batch_size": 2}, "attention mask"),
    ("flux", {"kind": "para_attn", "ulysses_degree": 2}, 3, {}, "= 2 ranks a replica does not"),
    ("flux", {"kind": "para_attn", "ulysses_degree": 3}, 3, {}, "does not divide the 4 attention"),
    (
        "flux",
        {"kind": "para_attn", "ulysses_degree": 2},
        2,
        {"parameters": {**SMALL, "max_sequence_length": 15}},
        "use context_parallel with ulysses_degree: 2",
    ),
    ("flux", {"kind": "para_attn", "first_block_cache": 0.1}, 1, {}, "leave it out"),
    ("flux", {"kind": "para_attn", "parallel_vae": True}, 1, {}, "another image"),
    ("flux", {"kind": "xdit", "cfg_degree": 3}, 3, {}, "cfg_degree"),
    ("flux", {"kind": "xdit", "use_teacache": True}, 1, {}, "with the same fingerprint"),
    ("flux", {"kind": "xdit", "use_cfg_parallel": True}, 1, {}, "use cfg_degree: 2"),
]


@pytest.mark.parametrize(
    ("model", "strategy", "world_size", "values", "words"), REFUSED, ids=lambda value: str(value)
)
def test_refused_by_plan(models, plan_words, model, strategy, world_size, values, words):
    code, said = plan_words(models / model, strategy, world_size, **values)
    assert code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_other_models_are_refused_with_those_that_work(models, plan_words, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    index = json.loads((models / "flux" / "model_index.json").read_text())
    for path in filter(Path.is_dir, (models / "flux").iterdir()):
        (folder / path.name).symlink_to(path)
    (folder / "model_index.json").write_text(json.dumps(index))
    tiny.edit_json(
        folder / "model_index.json",
        _class_name="ChromaPipeline",
        transformer=["diffusers", "ChromaTransformer2DModel"],
    )
    for kind, known in (("xdit", "SanaPipeline"), ("para_attn", "FluxTransformer2DModel")):
        code, said = plan_words(folder, {"kind": kind, "ulysses_degree": 2}, 2)
        assert code == 2
        assert known in said
        assert "use data_parallel" in said  # diffusers has no plan for it


def of_configs(
    folder: Path, pipeline: str, scheduler: dict[str, Any], **parameters: Any
) -> Conditions:
    """One image of a model that is known by its configs alone."""
    files = {
        "model_index.json": {
            "_class_name": pipeline,
            "transformer": ["diffusers", "AnyModel"],
            "vae": ["diffusers", "AutoencoderKL"],
            "scheduler": ["diffusers", scheduler["_class_name"]],
        },
        "transformer/config.json": {"num_attention_heads": 8, "num_layers": 8, "patch_size": 2},
        "vae/config.json": {"block_out_channels": [128, 256, 512, 512]},
        "scheduler/scheduler_config.json": scheduler,
    }
    for name, values in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(values))
    image = SimpleNamespace(
        prompt_index=0, prompt="x", parameters={"height": 1024, "width": 1024, **parameters}
    )
    return Conditions(
        model="m", configs=ModelConfigs.read(folder),
        dtype="bfloat16", batch_size=1, images=lambda: [image],
        device=None, component_bytes=dict, machine=lambda: None,
    )  # fmt: skip


EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
DPM = {"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "dpmsolver++"}
DDPM = {"_class_name": "DDPMScheduler"}
BINS = {"use_resolution_binning": False}
OFFERED_BUT_WRONG = [
    ("SanaPipeline", EULER, {"ulysses_degree": 2}, {}, "fails as it loads"),
    ("SanaPipeline", EULER, {"pipefusion_degree": 2}, {}, "draws a wrong image"),
    ("SanaSprintPipeline", EULER, {"pipefusion_degree": 2}, {}, "is not implemented"),
    ("Flux2KleinPipeline", EULER, {"pipefusion_degree": 2}, {}, "use ulysses_degree or"),
    ("StableDiffusion3Pipeline", EULER, {"pipefusion_degree": 2}, {}, "add ulysses_degree: 2"),
    ("HunyuanDiTPipeline", DDPM, {"ulysses_degree": 2}, BINS, "has DDPMScheduler"),
    ("PixArtAlphaPipeline", DPM, {"ulysses_degree": 2}, {}, "use use_resolution_binning: false"),
    ("PixArtAlphaPipeline", DPM, {"ulysses_degree": 2}, {**BINS, "eta": 0.5}, "the same noise"),
    (
        "PixArtAlphaPipeline",
        {**DPM, "algorithm_type": "sde-dpmsolver++"},
        {"pipefusion_degree": 2},
        BINS,
        "add no noise",
    ),
    ("PixArtAlphaPipeline", {"_class_name": "PNDMScheduler"}, {"ring_degree": 2}, BINS, "PNDM"),
]


@pytest.mark.parametrize(
    ("pipeline", "scheduler", "degrees", "parameters", "words"), OFFERED_BUT_WRONG
)
def test_what_xfuser_offers_and_gets_wrong(
    tmp_path, pipeline, scheduler, degrees, parameters, words
):
    conditions, strategy = of_configs(tmp_path, pipeline, scheduler, **parameters), XDit(**degrees)
    with pytest.raises(StrategyError, match=words):
        strategy.resolve(conditions, World(world_size=strategy.ranks))


@pytest.mark.parametrize(
    ("pipeline", "scheduler", "degrees", "parameters"),
    [
        ("SanaPipeline", EULER, {"cfg_degree": 2}, {}),
        ("HunyuanDiTPipeline", DDPM, {"cfg_degree": 2}, {}),
        ("HunyuanDiTPipeline", DPM, {"ulysses_degree": 2, "pipefusion_degree": 2}, BINS),
        ("StableDiffusion3Pipeline", EULER, {"ulysses_degree": 2, "pipefusion_degree": 2}, {}),
        ("PixArtAlphaPipeline", DPM, {"pipefusion_degree": 2}, BINS),
    ],
)
def test_and_what_it_gets_right(tmp_path, pipeline, scheduler, degrees, parameters):
    conditions, strategy = of_configs(tmp_path, pipeline, scheduler, **parameters), XDit(**degrees)
    strategy.resolve(conditions, World(world_size=strategy.ranks))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"max_sequence_length": 15}, "the text has 15 tokens"),
        ({"height": 48, "width": 80}, "the image 80×48 has 15 tokens"),
    ],
)
def test_tokens_of_flux2_are_counted(tmp_path, parameters, words):
    """xfuser pads them, and lets the padding be attended to."""
    files = {
        "model_index.json": {
            "_class_name": "Flux2Pipeline",
            "transformer": ["diffusers", "Flux2Transformer2DModel"],
            "vae": ["diffusers", "AutoencoderKLFlux2"],
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        },
        "transformer/config.json": {"num_attention_heads": 48, "num_layers": 8, "patch_size": 1},
        "vae/config.json": {"block_out_channels": [128, 256, 512, 512]},
    }
    for name, values in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(values))
    image = SimpleNamespace(
        prompt_index=0, prompt="x", parameters={"height": 64, "width": 64, **parameters}
    )
    conditions = Conditions(
        model="flux2", configs=ModelConfigs.read(tmp_path),
        dtype="bfloat16", batch_size=1, images=lambda: [image],
        device=None, component_bytes=dict, machine=lambda: None,
    )  # fmt: skip
    with pytest.raises(StrategyError, match=words):
        XDit(ulysses_degree=2).resolve(conditions, World(world_size=2))


def test_good_plans_say_what_is_missing_and_what_is_approximate(models, plan_words):
    code, said = plan_words(models / "flux", xdit(ulysses=2, pipefusion=2), 8)
    assert code == 0
    assert "2 replicas × 4 ranks" in said
    assert "PipeFusion is approximate" in said
    code, said = plan_words(models / "qwen", {"kind": "para_attn", "ulysses_degree": 2}, 2)
    assert code == 0


@pytest.mark.parametrize(
    ("strategy", "package"),
    [
        (XDit(ulysses_degree=2), "xfuser==0.7.0"),
        (ParaAttention(ulysses_degree=2), "para-attn==0.3.38"),
    ],
)
def test_a_start_without_the_package_is_refused_with_the_line_that_installs_it(
    models, monkeypatch, strategy, package
):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    for device, is_refused in (("gpu", True), (None, False)):
        conditions = Conditions(
            model="flux", configs=ModelConfigs.read(models / "flux"),
            dtype="bfloat16", batch_size=1, images=tuple,
            device=device, component_bytes=dict, machine=lambda: None,
        )  # fmt: skip
        line = f"pip install {package}"
        if is_refused:
            with pytest.raises(StrategyError, match=r"is not installed: ") as refused:
                strategy.resolve(conditions, World(world_size=2))
            assert line in str(refused.value)
        else:
            assert line in strategy.resolve(conditions, World(world_size=2)).remarks[0]


def test_xdit_without_a_gpu_is_refused_at_the_start(models, manifest, capsys):
    path = manifest(model=str(models / "flux"), strategy=xdit(ulysses=1, ring=1), prompts=["x"])
    assert main(["plan", str(path)]) == 0
    conditions = Conditions(
        model="flux", configs=ModelConfigs.read(models / "flux"),
        dtype="float32", batch_size=1, images=tuple,
        device="cpu", component_bytes=dict, machine=lambda: None,
    )  # fmt: skip
    with pytest.raises(StrategyError, match="needs a GPU, and there is none; use context_parallel"):
        XDit(ulysses_degree=2).resolve(conditions, World(world_size=2))


def test_what_xfuser_imports_and_does_not_declare(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton" or None)
    XDit(ulysses_degree=2)._check_modules()
    with pytest.raises(StrategyError, match="needs sageattention, .* pip install sageattention"):
        XDit(ulysses_degree=2, attention_backend="sage")._check_modules()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StrategyError, match="pip install triton"):
        XDit(ulysses_degree=2)._check_modules()


def test_the_last_rank_of_an_xdit_replica_leads():
    layouts = [XDit(ulysses_degree=2, pipefusion_degree=2).layout(World(rank, world_size=8))
               for rank in range(8)]  # fmt: skip
    assert [layout.is_leader for layout in layouts] == [False] * 3 + [True] + [False] * 3 + [True]
    assert layouts[5] == Layout(2, 1, 4, 1, leader=3)


def test_every_supported_pipeline_is_in_diffusers():
    import diffusers

    assert not [name for name in MODELS if not hasattr(diffusers, name)]
