"""The base class of everything that is read from a manifest: strict, frozen, no unknown keys.

Each key has a description and examples: `runner schema` and docs/manifest.md are made from them.
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

__all__ = ["KeyFault", "Settings", "ShortForm", "Text"]


class KeyFault(ValueError):
    """What is wrong with one key of a mapping that is checked as a whole. Messages name its line,
    not that of the mapping."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Settings(BaseModel):
    """Part of a manifest, as pydantic validates it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ShortForm:
    """Accepts a short form: the value of a mapping's main key in place of the mapping."""

    def __init__(self, key: str) -> None:
        self.key = key

    def lift(self, value: Any) -> Any:
        """The long form of either."""
        return value if isinstance(value, dict | Settings) else {self.key: value}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(self.lift, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> "JsonSchemaValue":
        """Either form; the short one only where the long form needs no other key."""
        whole = handler(schema)
        models = [handler.resolve_ref_schema(part) for part in whole.get("oneOf", [whole])]
        alone = [model for model in models if set(model.get("required", ())) <= {self.key}]
        short = [_value(model["properties"][self.key]) for model in alone]
        return {"anyOf": [*short, whole]}


def _value(key: dict[str, Any]) -> dict[str, Any]:
    """The schema of a key without what is said about it."""
    about = ("title", "description", "examples", "default")
    return {name: value for name, value in key.items() if name not in about}


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is blank")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode (a lone surrogate)") from None
    return value


Text = Annotated[str, AfterValidator(_text)]
