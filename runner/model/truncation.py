"""Texts that are longer than a text encoder takes: which words were cut off by which tokenizer.

Pipelines cut them silently. The tokenizers are wrapped, and watched while the pipelines call them:
this costs nothing, and needs no list of limits.
"""

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
                object.__setattr__(pipe, name, _Watched(component, self._note_of(name)))

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


class _Watched:
    """A tokenizer that reports what it cuts off, and behaves the same in everything else."""

    def __init__(self, tokenizer: Any, note: Callable[[int, str], None]) -> None:
        self._tokenizer = tokenizer
        self._note = note

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tokens = self._tokenizer(*args, **kwargs)
        for row, encoding in enumerate(getattr(tokens, "encodings", None) or ()):
            left = [token for part in encoding.overflowing for token in part.ids]
            if words := self._words(left) if left else "":
                self._note(row, words)
        return tokens

    def _words(self, tokens: list[int]) -> str:
        """Without special tokens, such as padding; but an unknown word counts as a word."""
        tokenizer = self._tokenizer
        special = set(tokenizer.all_special_ids)
        if tokenizer.unk_token_id not in (tokenizer.pad_token_id, tokenizer.eos_token_id):
            special.discard(tokenizer.unk_token_id)
        text: str = tokenizer.decode([token for token in tokens if token not in special])
        return text

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
