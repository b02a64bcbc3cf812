"""Lists of prompts, read without a manifest."""

from pathlib import Path
from typing import Any

from runner.manifest.sources.open import open_prompts
from runner.manifest.sources.prompt_list import PromptList
from runner.manifest.sources.spec import File
from runner.manifest.yaml_tree import Node


def read(path: Path, **options: Any) -> PromptList:
    """The prompts of a file. Messages name it without its folder, where that is the current one."""
    spec = File.model_validate({"file": path.name, **options})
    shown = Path(path.name) if path.parent == Path.cwd() else path
    return open_prompts(spec, [shown], Node({}, "job.yaml"))


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
