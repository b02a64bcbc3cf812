"""Numbers and lists as people read them."""

from runner.units import first_few


def test_a_long_list_is_cut_and_says_by_how_much() -> None:
    assert first_few([]) == ""
    assert first_few([3, 5]) == "3, 5"
    assert first_few(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert first_few(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7 … 4 more"
