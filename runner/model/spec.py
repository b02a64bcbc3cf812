"""How a manifest names a model."""

from pathlib import Path

from pydantic import Field

from runner import demo
from runner.settings import Settings, Text

__all__ = ["ModelSpec"]


class ModelSpec(Settings):
    """A hub ID, a local folder, or `demo`."""

    id: Text = Field(
        description="a hub ID; a local folder of a diffusers pipeline, relative to the manifest; "
        "or demo, the small model that comes with the runner",
        examples=["Qwen/Qwen-Image", "./my-model", "demo"],
    )
    revision: Text | None = Field(
        default=None,
        description="a branch, tag or commit on the hub; the newest if not given. The first run "
        "records the commit, and later runs on the folder use it",
        examples=["75e0b4b"],
    )
    variant: Text | None = Field(
        default=None,
        description="which weight files to take; a component that has none of the variant is "
        "loaded from its plain files",
        examples=["fp16"],
    )
    controlnet: Text | None = Field(
        default=None,
        description="a local folder with a ControlNet, relative to the manifest; its control image "
        "is a parameter of each prompt",
        examples=["./controlnet-canny"],
    )
    allow_pickle: bool = Field(
        default=False,
        description="load weights that are not safetensors: they can run code",
        examples=[True],
    )
    trust_remote_code: bool = Field(
        default=False,
        description="run Python code that comes with the model",
        examples=[True],
    )

    @property
    def is_bundled(self) -> bool:
        """Whether it is the model that ships with the runner."""
        return self.id == "demo"

    @property
    def folder(self) -> Path | None:
        """Where the model lies; None for a model of the hub."""
        if self.is_bundled:
            return demo.MODEL_DIR
        path = Path(self.id)
        return path if path.is_absolute() else None
