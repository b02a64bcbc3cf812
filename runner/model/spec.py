"""How a manifest names a model."""

from pathlib import Path

from runner import demo
from runner.settings import Settings, Text

__all__ = ["ModelSpec"]


class ModelSpec(Settings):
    """A hub ID, a local folder, or `demo`."""

    id: Text
    revision: Text | None = None
    variant: Text | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False

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
