"""Launches that have every family's modules imported already, and the file of findings."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support.launches import Launcher
from support.proven import Findings, row_of, supports, written

Settle = Callable[[str, str, Findings], None]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Launcher]:
    launcher = Launcher("support.tiny:preload")
    yield launcher
    launcher.close()


@pytest.fixture
def trusts_table() -> bool:
    """Whether there is a table already, which the runner reads."""
    return "FINDINGS" not in os.environ


@pytest.fixture
def settle() -> Settle:
    """Findings of a test: none is a fault, and the file says no better of them. Where the table is
    being made (table.py), they are left for it."""

    def end(kind: str, name: str, found: Findings) -> None:
        if folder := os.environ.get("FINDINGS"):
            leave(Path(folder) / kind, name, found)
            return
        faults = [f"{name}, {key}: {one.reason}" for key, one in found.items() if not one.is_right]
        assert not faults, "\n".join(faults)
        if kind == "pipelines":
            entry = written()["pipelines"].get(row_of(name))
            assert supports(entry, found), f"{name}: {found}, not {entry}; make models-table"

    return end


def leave(folder: Path, name: str, found: Findings) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"name": name, "found": {key: asdict(one) for key, one in found.items()}}
    (folder / f"{name.replace('/', '_')}.json").write_text(json.dumps(values))
