"""How many tokens the images and texts of a job have, which the ranks of a replica share."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from runner.model.configs import ModelConfigs
from runner.strategies.checks.conditions import Conditions, PlannedImage

__all__ = ["Length", "has_mask", "lengths"]

BATCHES_AT_ONCE = 200


class Length(NamedTuple):
    """A count of tokens that the ranks share."""

    prompt_index: int  # the first prompt that has it
    names: tuple[str, ...]  # of the parameters that set it, or `prompt`
    what: str  # "the image 64×64", "the text", "the prompt …"
    tokens: int


def lengths(conditions: Conditions, most: int | None = None) -> list[Length]:
    """Every distinct count of tokens that is known. Texts are counted by the model's tokenizer;
    with `most`, only those that may have fewer tokens than that."""
    configs, found = conditions.configs, dict[tuple[str, int], Length]()
    texts: dict[tuple[str, int], tuple[int, str]] = {}  # (text, cut) → prompt index, parameter
    seen: Any = None
    for image in conditions.images():
        for name, text, cut in _texts(image, configs):
            # A word is at least a token: a text of far more words than `most` is not counted.
            if most is None or min(cut, len(text.split()) // 2) < most:
                texts.setdefault((text, cut), (image.prompt_index, name))
        if image.parameters is seen:
            continue  # images that share their parameters share these counts
        seen = image.parameters
        for length in _by_parameters(image.prompt_index, seen, configs):
            found.setdefault((length.what, length.tokens), length)
    counts = configs.tokens_of([text for text, _ in texts]) if texts else []
    for ((text, cut), (index, name)), count in zip(texts.items(), counts, strict=True):
        what = f'the {name.replace("_", " ")} "{text[:40]}"'
        tokens = min(count, cut)
        found.setdefault((what, tokens), Length(index, (name,), what, tokens))
    return [*found.values()]


def _by_parameters(
    prompt_index: int, parameters: Mapping[str, Any], configs: ModelConfigs
) -> Iterator[Length]:
    """The counts that do not depend on what a text says."""
    count = configs.image_tokens(parameters)
    if count is not None:
        height, width = configs.size(parameters)
        yield Length(prompt_index, ("height", "width"), f"the image {width}×{height}", count)
    cut = configs.text_tokens(parameters)
    if cut is not None and not configs.text_varies:
        yield Length(prompt_index, ("max_sequence_length",), "the text", cut)


def _texts(image: PlannedImage, configs: ModelConfigs) -> Iterator[tuple[str, str, int]]:
    """Texts whose own length counts: parameter, text, and after how many tokens it is cut."""
    cut = configs.text_tokens(image.parameters)
    if cut is None or not configs.text_varies:
        return
    yield "prompt", image.prompt, cut
    negative = image.parameters.get("negative_prompt")
    if isinstance(negative, str):
        yield "negative_prompt", negative, cut


def has_mask(conditions: Conditions) -> bool:
    """Whether attention may get a mask. Where a text is as long as its prompt, only a batch with
    texts of unequal length has one. Raises ModelError for a tokenizer that cannot be read."""
    if not conditions.configs.has_mask(conditions.batch_size):
        return False
    if not conditions.configs.text_varies or conditions.batches is None:
        return True
    return _differ(conditions)


@functools.lru_cache(maxsize=16)  # asked for every degree that could be a remedy
def _differ(conditions: Conditions) -> bool:
    """Whether a batch has texts of unequal length."""
    configs = conditions.configs
    batches = conditions.batches() if conditions.batches else ()
    differing = _differing(batches, configs)
    while some := [*islice(differing, BATCHES_AT_ONCE)]:
        texts = [*{text for group in some for text, _ in group}]
        counts = dict(zip(texts, configs.tokens_of(texts), strict=True))
        for group in some:
            if len({min(counts[text], cut) for text, cut in group}) > 1:
                return True
    return False


def _differing(
    batches: Iterable[Iterable[PlannedImage]], configs: ModelConfigs
) -> Iterator[set[tuple[str, int]]]:
    """The texts, with their cut, that are padded to one length and are not all the same: of each
    batch its prompts, and its negative prompts."""
    for batch in batches:
        together: dict[str, set[tuple[str, int]]] = {}
        for image in batch:
            for name, text, cut in _texts(image, configs):
                together.setdefault(name, set()).add((text, cut))
        yield from (group for group in together.values() if len(group) > 1)
