"""Where torch keeps compiled code on this machine, and which C compiler it uses."""

import contextlib
import os
import platform
import re
import shutil
import zlib
from pathlib import Path

from runner.errors import LaunchError

__all__ = ["c_compiler", "compile_cache"]


def compile_cache() -> Path:
    """The folder for compiled code: TORCHINDUCTOR_CACHE_DIR, else one in the user's cache, to which
    the variable is set. torch's default is below /tmp, which on a cluster ends with the job.

    Raises LaunchError if the user has no home folder.
    """
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise LaunchError(
            "compile: no home folder to keep compiled code in; set TORCHINDUCTOR_CACHE_DIR"
        ) from None
    folder = caches.absolute() / "runner" / "compiled" / _processor()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder


def _processor() -> str:
    """A name for what this processor can do. Code compiled for it may not run on another machine
    with the same home folder, and torch does not check that."""
    features = ""
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text()
        lines = (line for line in info.splitlines() if re.match("flags|Features", line))
        features = next(lines, "")
    return f"{platform.machine()}-{zlib.crc32(features.encode()):08x}"


def c_compiler() -> str | None:
    """The compiler that triton would find."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
