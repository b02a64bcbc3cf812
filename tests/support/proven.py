"""`runner/model/proven.json`: what the suite found, pipeline class by class, and the page of it."""

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.model.batching import one_at_a_time, takes_references
from support import ROOT, tiny
from support.findings import Finding

__all__ = ["FILE", "PAGE", "Findings", "page", "row_of", "supports", "table", "written"]

FILE = ROOT / "runner" / "model" / "proven.json"
PAGE = ROOT / "docs" / "models.md"
PACKAGES = ("diffusers", "transformers", "torch")

Findings = Mapping[str, Finding]  # by strategy
Table = dict[str, Any]


def written() -> Table:
    found: Table = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def table(pipelines: Mapping[str, Findings], schedulers: Mapping[str, Findings]) -> Table:
    """What goes into the file. A class is as good as the worst of its variants; a key of
    `schedulers` is a class and a scheduler."""
    proven: dict[str, Any] = {}
    refused: dict[str, str] = {}
    faults: dict[str, str] = {}
    for name in sorted(set(map(row_of, pipelines))):
        variants = [found for key, found in pipelines.items() if row_of(key) == name]
        faults |= _faults(name, variants)
        outcomes = [found["data_parallel"] for found in variants]
        if refusals := [one.reason for one in outcomes if one.outcome == "refused"]:
            refused[name] = refusals[0]
        elif all(one.is_right for one in outcomes):
            proven[name] = _entry(name, variants)
    combined: dict[str, dict[str, str]] = {}
    for key, found in schedulers.items():
        name, _, scheduler = key.partition(" ")
        combined.setdefault(name, {})[scheduler] = _words(found["data_parallel"])
    return {
        "versions": {name: importlib.metadata.version(name).partition("+")[0] for name in PACKAGES},
        "pipelines": proven,
        "refused": refused,
        "faults": faults,
        "schedulers": dict(sorted(combined.items())),
    }


def row_of(key: str) -> str:
    """The row of a variant: its class. What an edit model makes of images has a row of its own."""
    name, _, variant = key.partition("/")
    return f"{name} with images" if variant == "edit" else name


def supports(entry: Mapping[str, Any] | None, found: Findings) -> bool:
    """Whether findings are at least as good as the file's entry for their class."""
    if entry is None:
        return found["data_parallel"].outcome in ("refused", "fault")
    if entry["batch"] == "any" and found["data_parallel"].outcome != "equal":
        return False
    return all(found[name].outcome in ("equal", "batch 1") for name in entry["strategies"])


def page(found: Table) -> str:
    """docs/models.md."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        "# Pipelines, and what is proven of them",
        "",
        f"Made by `make models-table` with {versions}.",
        "",
        "A tiny random model of each class makes several texts and sizes, in one process and in",
        "two, and each image is compared with that of plain diffusers, called with that prompt",
        "alone. It is equal where no value is more than 1 of 255 off. Where a pipeline takes input",
        "images, each prompt has its own: the last column has their parameters.",
        "",
        "| pipeline | batch size | `phases` | `device_map` with `max_memory` | input images |",
        "| --- | --- | --- | --- | --- |",
        *(_row(name, entry) for name, entry in found["pipelines"].items()),
    ]
    lines += _section(
        "Batch size 1 only: what became of a batch of three", _reasons(found, "batch")
    )
    lines += _section("Strategies refused, and why", _reasons(found, "strategies"))
    lines += _section("Refused by `plan`", found["refused"])
    lines += _section("Not right yet", found["faults"])
    for name, schedulers in found["schedulers"].items():
        lines += ["", f"## Schedulers of {name}", "", "| scheduler | result |", "| --- | --- |"]
        lines += [f"| {scheduler} | {words} |" for scheduler, words in schedulers.items()]
    return "\n".join(lines) + "\n"


def _entry(name: str, variants: list[Findings]) -> dict[str, Any]:
    whys = [found["data_parallel"].reason for found in variants]
    others = [name for name in variants[0] if name != "data_parallel"]
    is_equal = {other: all(v[other].outcome == "equal" for v in variants) for other in others}
    refusals = {
        other: next(v[other].reason for v in variants if v[other].outcome != "equal")
        for other in others
        if not is_equal[other] and all(v[other].is_right for v in variants)
    }
    entry: dict[str, Any] = {
        "batch": 1 if any(whys) else "any",
        "strategies": ["data_parallel", *(other for other in others if is_equal[other])],
    }
    if any(whys):
        # What the runner knows of the class says more than how its batch failed.
        why = one_at_a_time(name, "") or next(filter(None, whys))
        is_reference = takes_references(name.partition(" ")[0])
        entry["why_batch_1"] = "its input images belong to one prompt" if is_reference else why
    return {**entry, "refused": refusals} if refusals else entry


def _faults(name: str, variants: list[Findings]) -> dict[str, str]:
    return {
        f"{name} {strategy}": one.reason
        for found in variants
        for strategy, one in found.items()
        if not one.is_right
    }


def _row(name: str, entry: Mapping[str, Any]) -> str:
    cells = ["equal" if it in entry["strategies"] else "no" for it in ("phases", "device_map")]
    inputs = {i for key, model in tiny.MODELS.items() if row_of(key) == name for i in model.inputs}
    shown = ", ".join(f"`{one}`" for one in sorted(inputs))
    return f"| {name} | {entry['batch']} | {' | '.join(cells)} | {shown} |"


def _reasons(found: Table, kind: str) -> dict[str, str]:
    if kind == "batch":
        entries = found["pipelines"].items()
        return {name: entry["why_batch_1"] for name, entry in entries if "why_batch_1" in entry}
    return {
        f"{name} {strategy}": reason
        for name, entry in found["pipelines"].items()
        for strategy, reason in entry.get("refused", {}).items()
    }


def _section(title: str, lines: Mapping[str, str]) -> list[str]:
    if not lines:
        return []
    rows = [f"- {name}: {_escaped(reason)}" for name, reason in lines.items()]
    return ["", f"## {title}", "", *rows]


def _words(found: Finding) -> str:
    return _escaped(f"{found.outcome}: {found.reason}" if found.reason else found.outcome)


def _escaped(words: str) -> str:
    return " ".join(words.replace("|", "/").split())


def variants_of(name: str) -> list[str]:
    """The keys of tiny.MODELS that are of the same class."""
    own = name.partition("/")[0]
    return [key for key in tiny.MODELS if key.partition("/")[0] == own]


def read(folder: Path) -> dict[str, Findings]:
    """Findings that tests left in a folder, in the order of their names."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        values = json.loads(file.read_text(encoding="utf-8"))
        found[values["name"]] = {
            strategy: Finding(**one) for strategy, one in values["found"].items()
        }
    return found
