"""The base class of everything that is read from a manifest: strict, frozen, no unknown keys."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

__all__ = ["Settings", "Text"]


class Settings(BaseModel):
    """Part of a manifest, as pydantic validates it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is blank")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode (a lone surrogate)") from None
    return value


Text = Annotated[str, AfterValidator(_text)]
