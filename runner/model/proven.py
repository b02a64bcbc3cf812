"""Which pipelines a test proves right: data that the conformance suite writes, proven.json.

A pipeline is proven for one version of diffusers, with the strategies that the suite tried. The
parallel strategies of strategies/ name their own proofs.
"""

import functools
import json
from pathlib import Path
from typing import Any

from runner.model.source import installed

__all__ = ["is_proven"]

TRIED = ("data_parallel", "device_map", "phases")  # by the suite


@functools.cache
def _pipelines() -> dict[str, Any]:
    """Class → what is proven of it; empty with another diffusers."""
    values = json.loads(Path(__file__).with_name("proven.json").read_text(encoding="utf-8"))
    if values["versions"]["diffusers"] != installed():
        return {}
    return dict(values["pipelines"])


def is_proven(class_name: Any, strategy: str) -> bool:
    """Whether a test compares this pipeline's images with those of plain diffusers. `strategy` is a
    kind, or `phases`."""
    about = _pipelines().get(class_name) if isinstance(class_name, str) else None
    if about is None:
        return False
    return strategy not in TRIED or strategy in about["strategies"]
