"""What the configs say about sizes."""

import json
from pathlib import Path

import pytest

from runner.model.configs import ModelConfigs

KL = {"block_out_channels": [4, 4, 4, 4], "latent_channels": 16}


@pytest.mark.parametrize(
    ("pipeline", "transformer", "vae", "multiple"),
    [
        ("FluxPipeline", {"in_channels": 64, "patch_size": 1}, KL, 16),
        ("StableDiffusion3Pipeline", {"in_channels": 16, "patch_size": 2}, KL, 16),
        ("PixArtSigmaPipeline", {"in_channels": 4, "patch_size": 2}, KL, 16),
        ("ZImagePipeline", {"in_channels": 16, "all_patch_size": [2]}, KL, 16),
        ("Lumina2Pipeline", {"in_channels": 16}, KL, 16),
        ("QwenImage21Pipeline", {"in_channels": 64}, {"z_dim": 16}, 32),
        ("BriaFiboPipeline", {"in_channels": 16, "patch_size": 1}, KL, 16),
        ("HunyuanImagePipeline", {}, {**KL, "spatial_compression_ratio": 32}, 32),
        ("StableDiffusionPipeline", {}, {}, 1),
    ],
)
def test_sizes_are_multiples_of_what_the_pipeline_rounds_to(
    tmp_path: Path,
    pipeline: str,
    transformer: dict[str, object],
    vae: dict[str, object],
    multiple: int,
) -> None:
    index = {"_class_name": pipeline, "transformer": ["diffusers", "T"], "vae": ["diffusers", "V"]}
    for name, values in (("transformer", transformer), ("vae", vae)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert ModelConfigs.read(tmp_path).size_multiple == multiple
