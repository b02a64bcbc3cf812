"""Where torch keeps compiled code on this machine, and the C compiler that it uses."""

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
    """Where torch keeps compiled code: the folder that the user named, else one in the user's
    cache, told to torch. torch's own choice is below /tmp, which on a cluster ends with the job.

    Raises LaunchError where the user has no home.
    """
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if named:
        return Path(named).absolute()
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
    """A name for what this processor can do: code for it may be no code for another that shares
    the home folder, and torch does not look."""
    able = ""
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text()
        able = next((line for line in info.splitlines() if re.match("flags|Features", line)), "")
    return f"{platform.machine()}-{zlib.crc32(able.encode()):08x}"


def c_compiler() -> str | None:
    """As triton looks for one."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
