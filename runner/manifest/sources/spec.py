"""Where prompts come from, as a manifest has it."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
)

from runner.manifest.prompts import SHORT_PROMPT, PromptItem, Seed, check_name
from runner.settings import KeyFault, Settings, Text

__all__ = [
    "OWN_KEYS",
    "Dataset",
    "File",
    "Format",
    "ListedPrompts",
    "Select",
    "Source",
    "form_of",
]

OWN_KEYS = tuple(PromptItem.model_fields)
ROWS = re.compile(r"([1-9]\d{0,14})(?:-([1-9]\d{0,14}))?", re.ASCII)
ROWS_SCHEMA = WithJsonSchema({"type": ["string", "integer"]})
Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "sd-scripts"]


def _rows(value: Any) -> Any:
    """`5` is short for `5-5`."""
    text = str(value) if type(value) is int else value
    found = ROWS.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise ValueError("must be the first and the last row, counted from 1, as in 10-20")
    return text


def _one_choice(value: "Select") -> "Select":
    if value.first is not None and value.sample is not None:
        raise ValueError("give first or sample, not both")
    if value.seed is not None and value.sample is None:
        raise ValueError("seed belongs to sample; add sample, or remove seed")
    return value


def _check_columns(values: dict[str, str | None]) -> dict[str, str | None]:
    for key in values:
        try:
            if key not in OWN_KEYS:
                check_name(key)
        except ValueError as error:
            raise KeyFault(key, str(error)) from None
    named = [column for column in values.values() if column is not None]
    twice = next((column for column in named if named.count(column) > 1), None)
    if twice is not None:
        raise ValueError(f"the column {twice} is given twice; keep one")
    return values


class Select(Settings):
    """Which rows of a source are prompts: those of `rows`; of these, those that fit `where`; of
    these, the first or a sample."""

    rows: Annotated[str, BeforeValidator(_rows), ROWS_SCHEMA] | None = Field(
        default=None,
        description="only these rows, counted from 1 without the names of columns and blank lines",
        examples=["101-200"],
    )
    where: dict[Text, JsonValue] = Field(
        default_factory=dict,
        description="only rows that have these values in these columns",
        examples=[{"tag": "counting"}],
    )
    first: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of those, only so many from the start", examples=[100]
    )
    sample: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of those, so many at random, in their order", examples=[100]
    )
    seed: Seed | None = Field(
        default=None, description="of the sample; 0 if not given", examples=[7]
    )

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The first and the last row, from 1."""
        found = ROWS.fullmatch(self.rows) if self.rows else None
        return (int(found[1]), int(found[2] or found[1])) if found else (1, None)


class Source(Settings):
    """What files and data sets have in common."""

    columns: Annotated[dict[Text, Text | None], AfterValidator(_check_columns)] = Field(
        default_factory=dict,
        description="a key of a prompt, or a parameter, and its column; null: in none",
        examples=[{"prompt": "caption", "id": "key", "negative_prompt": "neg"}],
    )
    extra: Literal["keep", "refuse"] = Field(
        default="keep",
        description="all other columns: keep puts them into meta",
        examples=["refuse"],
    )
    select: Annotated[Select, AfterValidator(_one_choice)] = Field(
        default=Select(), description="which rows", examples=[{"first": 100}]
    )
    repeat_ids: bool = Field(
        default=False, description="several prompts may have one id", examples=[True]
    )


class File(Source):
    """`{file: prompts.csv}`; a folder stands for the .txt files in it."""

    file: Text = Field(
        description="a .txt, .jsonl, .json, .csv, .tsv or .parquet file, also with .gz; or a "
        "folder of .txt files; relative to the manifest",
        examples=["prompts.csv"],
    )
    format: Format | None = Field(
        default=None,
        description="what the file is, where its name does not say it; sd-scripts are lines with "
        "its flags",
        examples=["sd-scripts"],
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="refuse the file if its SHA-256 is another; manifest.yaml has it",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )


class Dataset(Source):
    """`{dataset: org/name}`, of the hub or from its cache."""

    dataset: Text = Field(description="a data set of the hub", examples=["nateraw/parti-prompts"])
    config: Text | None = Field(
        default=None, description="its configuration, where it has several", examples=["default"]
    )
    split: Text = Field(default="train", description="its split", examples=["test"])
    revision: Text | None = Field(
        default=None, description="a branch, tag or commit", examples=["main"]
    )


def form_of(value: Any) -> str:
    """The tag of an item of a list of prompts."""
    if isinstance(value, Source):
        return "<file>" if isinstance(value, File) else "<dataset>"
    if isinstance(value, dict) and "prompt" not in value:
        return next((f"<{key}>" for key in ("file", "dataset") if key in value), "<prompt>")
    return "<prompt>"


ListedPrompts = tuple[
    Annotated[
        Annotated[PromptItem, SHORT_PROMPT, Tag("<prompt>")]
        | Annotated[File, Tag("<file>")]
        | Annotated[Dataset, Tag("<dataset>")],
        Discriminator(form_of),
    ],
    ...,
]
