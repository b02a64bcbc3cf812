"""How many tokens the images and texts of a job have, which the ranks of a replica share."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from runner.model.configs import ModelFacts
from runner.strategies.base import Asked

__all__ = ["Length", "lengths"]


class Length(NamedTuple):
    """A count of tokens that the ranks share."""

    place: int  # the first prompt that has it
    names: tuple[str, ...]  # of the parameters that make it, or `prompt`
    what: str  # "the image 64×64", "the text", "the prompt …"
    tokens: int


def lengths(asked: Asked, facts: ModelFacts, most: int | None = None) -> list[Length]:
    """Every distinct count of tokens, as far as known. Texts are counted by their model's
    tokenizer, with `most` only those that may have fewer tokens than that."""
    found: dict[tuple[str, int], tuple[int, tuple[str, ...]]] = {}
    of_image, of_text = ("height", "width"), ("max_sequence_length",)
    texts: dict[tuple[str, int], tuple[int, str]] = {}
    seen: Any = None
    for image in asked.images():
        cut = facts.text_tokens(image.parameters)
        if facts.text_varies and cut is not None:
            for name, text in _texts(image.prompt, image.parameters):
                # A word is a token at least: far more words than `most` need no counting.
                if most is None or min(cut, len(text.split()) // 2) < most:
                    texts.setdefault((text, cut), (image.prompt_index, name))
        if image.parameters is seen:
            continue  # images that share their parameters share these counts
        seen = image.parameters
        count = facts.image_tokens(image.parameters)
        if count is not None:
            height, width = facts.size(image.parameters)
            found.setdefault((f"the image {width}×{height}", count), (image.prompt_index, of_image))
        if cut is not None and not facts.text_varies:
            found.setdefault(("the text", cut), (image.prompt_index, of_text))
    counts = facts.tokens_of([text for text, _ in texts]) if texts else []
    for ((text, cut), (place, name)), count in zip(texts.items(), counts, strict=True):
        what = f'the {name.replace("_", " ")} "{text[:40]}"'
        found.setdefault((what, min(count, cut)), (place, (name,)))
    return [Length(*first, what, count) for (what, count), first in found.items()]


def _texts(prompt: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "prompt", prompt
    negative = parameters.get("negative_prompt")
    if isinstance(negative, str):
        yield "negative_prompt", negative
