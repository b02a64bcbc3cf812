"""The `schema` command: what a manifest may say, as a JSON Schema for editors and programs."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from runner.manifest.schema import Manifest
from runner.say import answer, to_json

__all__ = ["json_schema", "print_schema"]


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """A title would only repeat the key."""
        return False


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest."""
    schema = Manifest.model_json_schema(schema_generator=_Generator)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


def print_schema() -> None:
    answer(to_json(json_schema(), indent=2))
