"""Which image goes where, and in which order."""

import random

from hypothesis import given
from hypothesis import strategies as st

from runner.folder.moves import in_order

permutations = st.integers(1, 30).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 40), min_size=size, max_size=size, unique=True),
        st.lists(st.integers(0, 40), min_size=size, max_size=size, unique=True),
    )
)


@given(permutations)
def test_no_image_is_moved_over_another(lists: tuple[list[int], list[int]]) -> None:
    moves = {source: target for source, target in zip(*lists, strict=True) if source != target}
    files = {place: f"image {place}" for place in moves}
    aside: dict[int, str] = {}
    for step in in_order(moves):
        image = aside.pop(step.source) if step.source in aside else files.pop(step.source)
        if step.target is None:
            assert not aside, "one image at a time is out of sight"
            aside[step.source] = image
        else:
            assert step.target not in files
            files[step.target] = image
    assert not aside
    assert files == {target: f"image {source}" for source, target in moves.items()}


def test_a_long_list_takes_one_pass() -> None:
    size = 100_000
    assert len([*in_order({place: place + 1 for place in range(size)})]) == size
    places = [*range(size)]
    random.Random(1).shuffle(places)
    moves = {source: target for source, target in enumerate(places) if source != target}
    assert len([*in_order(moves)]) < 1.01 * size
