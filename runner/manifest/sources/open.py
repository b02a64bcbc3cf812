"""The prompts of a manifest, from wherever it has them."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runner.errors import ManifestError, Problem
from runner.manifest.prompts import PromptItem
from runner.manifest.sources.csv_rows import CsvRows
from runner.manifest.sources.folder import TextFolder
from runner.manifest.sources.json_list import JsonList
from runner.manifest.sources.lines import JsonLines, SdScriptsLines, TextLines
from runner.manifest.sources.prompt_list import FromSource, Inline, Joined, PromptList
from runner.manifest.sources.records import Records
from runner.manifest.sources.spec import File
from runner.manifest.sources.tables import DatasetRows, ParquetRows
from runner.manifest.sources.unpacked import Unpacked
from runner.manifest.yaml_tree import Node

__all__ = ["open_prompts", "records_of"]

ENDINGS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
READERS: dict[str, Callable[[Path, str], Records]] = {
    "text": TextLines,
    "jsonl": JsonLines,
    "json": JsonList,
    "csv": CsvRows,
    "tsv": lambda path, shown: CsvRows(path, shown, "\t"),
    "parquet": ParquetRows,
    "sd-scripts": SdScriptsLines,
}


def open_prompts(
    prompts: Any, files: Sequence[Path], root: Node, folder: Path | None = None
) -> PromptList:
    """`prompts` of a manifest; `files` are those of its sources that have one, in order. `folder`
    is the manifest's, where files name input images from their own folder. Raises ManifestError."""
    items: Sequence[Any] = prompts if isinstance(prompts, tuple) else (prompts,)
    paths = iter(files)
    lists: list[PromptList] = []
    listed: list[tuple[int, PromptItem]] = []
    for number, item in enumerate(items):
        if isinstance(item, PromptItem):
            listed.append((number, item))
            continue
        lists += _inline(listed, root)
        listed = []
        path = next(paths) if isinstance(item, File) else None
        place, start = root.walk(("prompts", number)).place, _seen_from(folder, path)
        lists.append(_from_source(item, path, place, start))
    lists += _inline(listed, root)
    found = lists[0] if len(lists) == 1 else Joined(lists)
    found.refuse_repeated_ids()
    return found


def _from_source(item: Any, path: Path | None, place: str, start: str) -> FromSource:
    """A source that stands at `place` in the manifest. The place is named where the source as a
    whole is wrong: it may be that another one is meant."""
    shown = str(path or item.dataset)
    try:
        return FromSource(records_of(item, path) if path else DatasetRows(item), item, start)
    except ManifestError as error:
        if not any(problem.place == shown for problem in error.problems):
            raise
        whole = [Problem(place, str(problem)) for problem in error.problems]
        raise ManifestError(whole) from None


def _seen_from(folder: Path | None, path: Path | None) -> str:
    """The folder of a prompt file, or the folder that it is; "" where that is `folder` itself."""
    if folder is None or path is None:
        return ""
    own = path if path.is_dir() else path.parent
    found = os.path.relpath(own, folder)
    return "" if found == "." else found


def _inline(items: Sequence[tuple[int, PromptItem]], root: Node) -> list[PromptList]:
    if not items:
        return []
    return [Inline([item.to_prompt() for _, item in items], root, [place for place, _ in items])]


def records_of(spec: File, path: Path) -> Records:
    """The records of a file or folder. Raises ManifestError."""
    shown = str(path)
    if path.is_dir():
        return TextFolder(path, shown)
    if path.suffix.lower() == ".gz":
        return Unpacked(path, shown, lambda inner: _records(spec, inner, shown))
    return _records(spec, path, shown)


def _records(spec: File, path: Path, shown: str) -> Records:
    kind = spec.format or ENDINGS.get(path.suffix.lower())
    if kind is None:
        words = f"prompt files end in {', '.join(ENDINGS)}; or add format, as in format: csv"
        raise ManifestError([Problem(shown, words)])
    if spec.format == "text":
        return TextLines(path, shown, is_certain=True)
    return READERS[kind](path, shown)
