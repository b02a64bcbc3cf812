"""How a manifest names a model."""

from runner.settings import Settings, Text

__all__ = ["ModelSpec"]


class ModelSpec(Settings):
    """A hub ID, a local folder, or `demo`."""

    id: Text
    revision: Text | None = None
    variant: Text | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
