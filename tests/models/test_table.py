"""The file of proven pipelines and the page of it are whole, and say the same."""

from support import tiny
from support.proven import PAGE, page, row_of, written


def test_the_page_is_that_of_the_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(written()), "make models-table"


def test_the_file_has_every_class() -> None:
    found = written()
    faulty = {key.partition(" ")[0] for key in found["faults"]}
    known = found["pipelines"].keys() | found["refused"].keys() | faulty
    assert known == set(map(row_of, tiny.MODELS)), "make models-table"
