"""The prompts of a job, beside the manifest as run: so the folder works wherever it is copied."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from runner.errors import FolderError
from runner.folder import files
from runner.folder.paths import OutputFolder
from runner.manifest.load import Loaded
from runner.manifest.prompts import Prompt
from runner.manifest.sources.prompt_list import PromptList
from runner.manifest.sources.spec import File

__all__ = ["has_recorded", "record_prompts"]

LONG = 1000  # prompts; more are compressed
CHUNK = 1 << 18  # bytes
GZIP = 31  # zlib's word for a gzip header


def record_prompts(
    folder: OutputFolder, loaded: Loaded, launch: str, check: Callable[[], None]
) -> File:
    """Write all prompts into one file, unless it has them, and return how manifest.yaml names it.
    `check` is called before the file gets its name."""
    prompts = loaded.prompts
    plain, compressed = folder.prompts
    path, other = (compressed, plain) if len(prompts) > LONG else (plain, compressed)
    if path.exists() and not folder.manifest.exists():
        raise FolderError(
            f"{path}: was not written by the runner and would be overwritten; use another "
            f"folder: --output DIR"
        )
    known = _known(folder)
    if not (has_recorded(folder, loaded) and known["file"] == path.name and path.exists()):
        found = hashlib.sha256()
        lines = _chunks(prompts)
        chunks = _compressed(lines) if path is compressed else lines
        files.replace(path, _hashed(chunks, found), launch, check)
        known = {"list": _sum(loaded), "file": path.name, "sha256": found.hexdigest()}
        files.replace(folder.prompts_note, (json.dumps(known).encode(),), launch, check)
        other.unlink(missing_ok=True)
    # Whether ids may be there twice was checked where they come from.
    return File(file=path.name, sha256=known["sha256"], repeat_ids=True)


def has_recorded(folder: OutputFolder, loaded: Loaded) -> bool:
    """Whether these are the prompts that were recorded last."""
    return _known(folder).get("list") == _sum(loaded)


def _sum(loaded: Loaded) -> int:
    """Of where the prompts come from, with columns and choices, and of what is there."""
    sources = loaded.manifest.model_dump_json(include={"prompts"})
    return zlib.crc32(sources.encode(), loaded.prompts.checksum())


def _known(folder: OutputFolder) -> dict[str, Any]:
    """What an earlier launch noted about the file."""
    try:
        values = json.loads(folder.prompts_note.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and {"file", "sha256"} <= values.keys() else {}


def _chunks(prompts: PromptList) -> Iterator[bytes]:
    lines = bytearray()
    for prompt in prompts:
        lines += _line(prompt)
        if len(lines) > CHUNK:
            yield bytes(lines)
            lines.clear()
    yield bytes(lines)


def _line(prompt: Prompt) -> bytes:
    values = {key: value for key, value in prompt._asdict().items() if value not in (None, {}, ())}
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _compressed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, wbits=GZIP)
    yield from map(packer.compress, chunks)
    yield packer.flush()


def _hashed(chunks: Iterator[bytes], found: Any) -> Iterator[bytes]:
    for chunk in chunks:
        found.update(chunk)
        yield chunk
