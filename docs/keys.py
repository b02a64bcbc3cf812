"""Write the tables of a manifest's keys from the models that read them: part of `make docs`.

In a document, a table stands between `<!-- keys of NAME -->`, with the name of a pydantic model,
and `<!-- end of keys -->`. docs/manifest.schema.json is what `runner schema` prints.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from runner.commands.schema import json_schema
from runner.manifest.schema import Manifest
from runner.strategies import StrategyBase

SCHEMA = Path(__file__).with_name("manifest.schema.json")
TABLE = re.compile(r"(<!-- keys of (\w+) -->\n).*?(?=<!-- end of keys -->)", re.DOTALL)
FIRST = "| key | default | meaning | example |\n| --- | --- | --- | --- |\n"

Model = type[BaseModel]


def models(annotation: Any = Manifest) -> Iterator[Model]:
    """A model and all models below it; the strategies' base in place of each strategy."""
    if isinstance(annotation, type) and issubclass(annotation, StrategyBase):
        yield StrategyBase
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    else:
        for argument in get_args(annotation):
            yield from models(argument)


def strategies() -> list[type[StrategyBase]]:
    union = Manifest.model_fields["strategy"].annotation
    return [kind for kind in get_args(union) if issubclass(kind, StrategyBase)]


def renewed(text: str) -> str:
    """A document with its tables as they should be."""
    known = {model.__name__: model for model in models()}
    return TABLE.sub(lambda found: found[1] + table(known[found[2]]), text)


def table(model: Model) -> str:
    if model is StrategyBase:
        rows = (row for kind in strategies() for row in rows_of(kind))
    else:
        rows = rows_of(model)
    return FIRST + "".join(rows)


def rows_of(model: Model) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name == "kind":
            yield f"| **`kind: {field.default}`** | | {field.description} | |\n"
            continue
        cells = f"`{name}`", default_of(field), field.description, example_of(name, field)
        yield f"| {' | '.join(cells)} |\n"


def default_of(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, StrategyBase):
        value = value.kind
    return f"`{written(value)}`" if isinstance(value, int | float | str) else ""


def example_of(name: str, field: Any) -> str:
    return "<br>".join(f"`{name}: {written(example)}`" for example in field.examples)


def written(value: Any) -> str:
    """A value in YAML, in one line: quotes only where they are needed."""
    if isinstance(value, dict):
        inner = ", ".join(f"{quoted(key)}: {written(one)}" for key, one in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def quoted(key: str) -> str:
    return f'"{key}"' if key.isdecimal() else key


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    for path in Path(__file__).parent.glob("*.md"):
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
