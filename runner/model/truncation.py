"""Texts that are longer than a text encoder takes: which words were cut off by which tokenizer.

Pipelines cut them silently. The tokenizers are watched while the pipelines call them: this costs
nothing, and needs no list of limits.
"""

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["Truncation", "truncation_of"]

MAX_WORDS = 200  # characters that are recorded of what was cut off


class Truncation:
    """Watches all tokenizers of a loaded pipeline."""

    def __init__(self, pipe: Any) -> None:
        self.cut: dict[int, dict[str, str]] = {}  # row of the batch → tokenizer → words
        for name, component in pipe.components.items():
            if name.startswith("tokenizer") and callable(component):
                _watch(component, self._note_of(name))

    def clear(self) -> None:
        """Call this before each batch."""
        self.cut = {}

    def of(self, row: int) -> dict[str, str]:
        """For a row of the batch: tokenizer → the words that it cut off."""
        return self.cut.get(row, {})

    def _note_of(self, name: str) -> Callable[[int, str], None]:
        def note(row: int, words: str) -> None:
            self.cut.setdefault(row, {}).setdefault(name, words[:MAX_WORDS])

        return note


def truncation_of(pipe: Any) -> Truncation:
    """The watcher of a loaded pipeline: its own, or a new one."""
    own = getattr(pipe, "truncation", None)
    return own if isinstance(own, Truncation) else Truncation(pipe)


def _watch(tokenizer: Any, note: Callable[[int, str], None]) -> None:
    """Have a tokenizer report what it cuts off. It stays the object that it is, so that whatever a
    pipeline reads, sets (as Sana sets `padding_side` before each call) or deletes on it counts;
    `__call__` is looked up in the class alone, so that is what changes. Copies are not watched."""
    plain: Any = type(tokenizer)

    @functools.wraps(plain.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = plain.__call__(self, *args, **kwargs)
        for row, encoding in enumerate(getattr(tokens, "encodings", None) or ()):
            left = [token for part in encoding.overflowing for token in part.ids]
            if words := _words(self, left) if left else "":
                note(row, words)
        return tokens

    def reduce(self: Any, protocol: Any) -> Any:
        _, (_, *arguments), *state = plain.__reduce_ex__(self, protocol)
        return _new, (plain, *arguments), *state

    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    methods = {"__call__": call, "__reduce_ex__": reduce}
    tokenizer.__class__ = type(plain.__name__, (plain,), {**names, **methods})


def _new(plain: Any, *arguments: Any) -> Any:
    return plain.__new__(plain, *arguments)


def _words(tokenizer: Any, tokens: list[int]) -> str:
    """Without special tokens, such as padding; but an unknown word counts as a word."""
    special = set(tokenizer.all_special_ids)
    if tokenizer.unk_token_id not in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        special.discard(tokenizer.unk_token_id)
    text: str = tokenizer.decode([token for token in tokens if token not in special])
    return text
