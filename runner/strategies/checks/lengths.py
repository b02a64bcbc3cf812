"""How many tokens the images and texts of a job have, which the ranks of a replica share."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from runner.model.configs import ModelConfigs
from runner.strategies.checks.conditions import Conditions, PlannedImage

__all__ = ["Length", "lengths"]


class Length(NamedTuple):
    """A count of tokens that the ranks share."""

    prompt_index: int  # the first prompt that has it
    names: tuple[str, ...]  # of the parameters that set it, or `prompt`
    what: str  # "the image 64×64", "the text", "the prompt …"
    tokens: int


def lengths(conditions: Conditions, configs: ModelConfigs, most: int | None = None) -> list[Length]:
    """Every distinct count of tokens that is known. Texts are counted by the model's tokenizer;
    with `most`, only those that may have fewer tokens than that."""
    found: dict[tuple[str, int], Length] = {}
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
