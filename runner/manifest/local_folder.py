"""Which texts name a folder that the runner can write to."""

import re

__all__ = ["check_local_folder"]

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
FILE_ENDINGS = (
    *(".tar", ".tgz", ".tar.gz", ".zip", ".7z", ".parquet", ".pdf"),
    *(".mp4", ".mov", ".webm", ".gif", ".png", ".jpg", ".jpeg", ".webp"),
)


def check_local_folder(text: str) -> str:
    """Returns the text. Raises ValueError for a URL, a file and `~`, which would all become folders
    with a strange name on this machine, and for what no path has."""
    if "\0" in text:
        raise ValueError("a NUL byte, which no path has; remove it")
    if found := SCHEME.match(text):
        raise ValueError(
            f"{found[0]} is not a local folder, and remote storage is not built yet; use a local "
            f"folder, and copy it when the job is done"
        )
    ending = next((end for end in FILE_ENDINGS if text.lower().endswith(end)), None)
    if ending:
        raise ValueError(
            f"images are written to a folder, not to one {ending} file; write a folder's name"
        )
    if text == "~" or text.startswith("~/"):
        raise ValueError("~ has no meaning here; write the whole path")
    return text
