"""The runner with a folder in place of the hub: every request to it is a line in a log.

torchrun … tests/support/hub_launch.py MODEL_FOLDER LOG [--fail] RUNNER_ARGUMENTS …
"""

import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers.pipelines.pipeline_utils as pipeline_utils
import huggingface_hub
from huggingface_hub import errors

from runner.cli import main

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def install(source: Path, log: Path, fails: bool) -> None:
    files = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--owner--name"

    def note(what: str) -> None:
        with log.open("a") as file:
            file.write(f"{what} rank {os.environ.get('RANK', '0')}\n")

    def info(*_: Any, **__: Any) -> Any:
        note("info")
        siblings = [SimpleNamespace(rfilename=name) for name in files]
        return SimpleNamespace(sha=COMMIT, siblings=siblings, pipeline_tag=None, library_name=None)

    def snapshot(*_: Any, allow_patterns: Any = None, **__: Any) -> str:
        patterns = allow_patterns or ["*"]
        wants_weights = any(pattern.endswith(".safetensors") for pattern in patterns)
        note("weights" if wants_weights else "configs")
        if wants_weights and fails:
            raise errors.LocalEntryNotFoundError("hf_SECRET")
        time.sleep(1 if wants_weights else 0)
        folder = cache / "snapshots" / COMMIT
        for name in files:
            if wants_weights or not name.endswith(".safetensors"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / name, folder / name)
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / "main").write_text(COMMIT)
        return str(folder)

    huggingface_hub.HfApi.model_info = info  # type: ignore[method-assign]
    huggingface_hub.snapshot_download = snapshot  # type: ignore[assignment]
    pipeline_utils.snapshot_download = snapshot
    pipeline_utils.model_info = info


if __name__ == "__main__":
    words = sys.argv[1:]
    fails = "--fail" in words
    words = [word for word in words if word != "--fail"]
    install(Path(words[0]), Path(words[1]), fails)
    sys.exit(main(words[2:]))
