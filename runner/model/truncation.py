"""Texts longer than a text encoder takes: which tokenizer cut which words off.

Pipelines cut them without a word. The tokenizers are watched as the pipelines call them, so that
this costs nothing and knows no limits of its own.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["Truncation", "truncation_of"]

TOLD = 200  # characters of what was cut off


class Truncation:
    """Watches all tokenizers of a loaded pipeline."""

    def __init__(self, pipe: Any) -> None:
        self.cut: dict[int, dict[str, str]] = {}  # row of the batch → tokenizer → words
        for name, component in pipe.components.items():
            if name.startswith("tokenizer") and callable(component):
                object.__setattr__(pipe, name, _Watched(component, self._note_of(name)))

    def clear(self) -> None:
        """A new batch begins."""
        self.cut = {}

    def of(self, row: int) -> dict[str, str]:
        """Tokenizer → the words that it cut off, for a row of the batch."""
        return self.cut.get(row, {})

    def _note_of(self, name: str) -> Callable[[int, str], None]:
        def note(row: int, words: str) -> None:
            self.cut.setdefault(row, {}).setdefault(name, words[:TOLD])

        return note


def truncation_of(pipe: Any) -> Truncation:
    """That of a loaded pipeline: its own, or a new one."""
    own = getattr(pipe, "truncation", None)
    return own if isinstance(own, Truncation) else Truncation(pipe)


class _Watched:
    """A tokenizer that tells what it cuts off, and is the same in all else."""

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
        """As far as they are of a text, also words that the tokenizer does not know."""
        tokenizer = self._tokenizer
        of_form = set(tokenizer.all_special_ids)
        if tokenizer.unk_token_id not in (tokenizer.pad_token_id, tokenizer.eos_token_id):
            of_form.discard(tokenizer.unk_token_id)
        text: str = tokenizer.decode([token for token in tokens if token not in of_form])
        return text

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
