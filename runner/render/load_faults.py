"""What can be wrong with a model that only its load shows, as one line."""

import contextlib
import errno
import logging
import pickle
import re
from collections.abc import Iterator, Sequence

from safetensors import SafetensorError

from runner.errors import ModelError, RunnerError
from runner.model.json_file import AGAIN

__all__ = ["model_faults"]

# What a wrong file, config or class leads to. A RuntimeError may also come from the machine.
KINDS = (
    OSError,
    ValueError,
    ImportError,
    LookupError,
    AttributeError,
    TypeError,
    NameError,
    EOFError,
    AssertionError,
    RecursionError,
    NotImplementedError,
    pickle.UnpicklingError,
    SafetensorError,
)
OF_THE_MACHINE = {  # errors of files where trying again may help
    *(errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC),
    *(errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET, errno.ENOTCONN),
}
DEVICE = re.compile("CUDA|HIP|NCCL|gloo|out of memory|allocate memory|onnection", re.IGNORECASE)
LOGGERS = ("transformers.modeling_utils", "diffusers.models.modeling_utils")
MISSING = (
    re.compile(r"^(\S+)\s*\|\s*MISSING", re.MULTILINE),  # transformers' table
    re.compile(r"are newly initialized: \['([^']*)'"),  # diffusers
)
OWNER = re.compile(r"(?:Some weights of |\x1b\[1m|^)(\w+)(?: LOAD REPORT| were not)", re.MULTILINE)


@contextlib.contextmanager
def model_faults(name: str) -> Iterator[None]:
    """Raises ModelError for whatever is wrong with the model that loads inside: what the libraries
    raise, and weights that its files lack. The libraries would draw those at random, and say so
    only to their logs."""
    seen = _Missing()
    try:
        with seen.watching():
            yield
    except Exception as error:
        if not _is_of_the_model(error):
            raise
        if seen.found:
            raise _lacking(name, seen.found) from error
        raise ModelError(f"{name}: cannot be loaded: {_words(error)}") from error
    if seen.found:
        raise _lacking(name, seen.found)


def _lacking(name: str, found: Sequence[str]) -> ModelError:
    return ModelError(f"{name}: its files lack weights, first {found[0]}; {AGAIN}")


def _is_of_the_model(error: Exception) -> bool:
    if isinstance(error, RunnerError):
        return False
    if isinstance(error, OSError):
        return error.errno not in OF_THE_MACHINE
    return isinstance(error, KINDS) or (
        type(error) is RuntimeError and not DEVICE.search(str(error))
    )


def _words(error: Exception) -> str:
    """The first line of an error; with its kind, where its words alone say little."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, OSError | ValueError | ImportError) and lines[0]:
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")


class _Missing(logging.Handler):
    """Weights that no file has, from what the libraries log of a load."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        owner = OWNER.search(text)
        for pattern in MISSING:
            for key in pattern.findall(text):
                self.found.append(f"{key} of {owner[1]}" if owner else key)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in LOGGERS]
        before = [(logger.level, logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.addHandler(self)
            logger.setLevel(logging.WARNING)
            logger.propagate = False
        try:
            yield
        finally:
            for logger, (level, propagate) in zip(loggers, before, strict=True):
                logger.removeHandler(self)
                logger.setLevel(level)
                logger.propagate = propagate
