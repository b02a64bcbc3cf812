"""With which settings a list can be read, for a manifest that is begun from it."""

import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path

from runner.errors import ManifestError
from runner.manifest.sources.columns import Columns
from runner.manifest.sources.foreign import other_format
from runner.manifest.sources.open import records_of
from runner.manifest.sources.prompt_list import FromSource, PromptList
from runner.manifest.sources.records import Records
from runner.manifest.sources.spec import File

__all__ = ["guess"]

FIRST_BYTES = 1 << 16
LOOKED_AT = 100  # records


def guess(path: Path, name: str) -> tuple[File, PromptList]:
    """The settings of a source, by its own `name`, and its prompts. Raises ManifestError, for the
    most likely format, where none will do."""
    first: ManifestError | None = None
    for form in (None, *_other_formats(path)):
        values = {"file": name, **({"format": form} if form else {})}
        try:
            records = records_of(File.model_validate(values), path)
            columns = _columns(records)
            spec = File.model_validate({**values, **({"columns": columns} if columns else {})})
            return spec, FromSource(records_of(spec, path), spec)
        except ManifestError as error:
            # The words for text may be to add a format, which was just tried.
            is_tried = form is not None and f"format: {form}" in str(first)
            first = error if first is None or is_tried else first
    assert first is not None
    raise first


def _other_formats(path: Path) -> list[str]:
    if not path.is_file() or path.suffix.lower() not in (".txt", ".jsonl"):
        return []
    with path.open("rb") as file:
        lines = file.read(FIRST_BYTES).decode("utf-8-sig", errors="replace").splitlines()
    start = next((line for line in lines if line.strip()), "")
    if path.suffix.lower() == ".jsonl":
        return ["json"]
    found = other_format(start)
    return [found] if found else ["sd-scripts"]


def _columns(records: Records) -> Mapping[str, str]:
    """The keys of a prompt whose columns have other names. Where no name says it, the prompt is the
    column with the longest texts."""
    lengths = dict.fromkeys(records.names() or (), 0)
    for _, record in itertools.islice(records.stream(), LOOKED_AT):
        with contextlib.suppress(ValueError, RecursionError):  # which the reader will explain
            for name, value in (records.fields(record) or {}).items():
                lengths[name] = lengths.get(name, 0) + len(str(value))
    names = sorted(lengths, key=lambda name: -lengths[name])
    return Columns(File(file="x"), is_text=records.is_text).guess(names)
