"""A ControlNet that a manifest gives a model: a local folder with its config and its weights."""

from pathlib import Path

from runner.errors import ModelError
from runner.model.json_file import read_json
from runner.model.weight_files import WEIGHTS

__all__ = ["class_of_controlnet"]


def class_of_controlnet(folder: Path) -> str:
    """By its config. Raises ModelError for a folder that is none."""
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"model.controlnet: no config.json in {folder}; name another folder")
    name = read_json(config).get("_class_name")
    if not isinstance(name, str) or "ControlNet" not in name:
        raise ModelError(f"model.controlnet: {folder} holds no ControlNet, but {str(name)[:80]}")
    if not any(path.suffix in WEIGHTS for path in folder.iterdir()):
        raise ModelError(f"model.controlnet: no weights in {folder}")
    return name
