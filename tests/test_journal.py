"""Journals: whole lines, merged by generation."""

from pathlib import Path

from runner.journal import Journal, merge


def test_the_later_launch_holds_and_done_holds_within_one(tmp_path: Path) -> None:
    first = Journal(tmp_path, 1, 0, "aaaa")
    first.done(0, "f0", 10, 1, {"seconds": 1})
    first.failed(1, "f1", "error", "bad", "trace")
    first.done(2, "f2", 10, 1, {})
    first.close()
    second, third = Journal(tmp_path, 2, 0, "bbbb"), Journal(tmp_path, 2, 1, "bbbb")
    second.done(1, "f1", 20, 2, {})
    third.failed(1, "f1", "error", "worse", "")
    third.failed(2, "f2", "error", "again", "")
    second.close()
    third.close()
    record = merge(tmp_path)
    assert record.generation == 2
    assert {index: done.size for index, done in record.done.items()} == {0: 10, 1: 20, 2: 10}
    assert {index: failed.error for index, failed in record.failed.items()} == {2: "again"}
    assert record.done[0].made == {"seconds": 1}
    assert not record.unclean


def test_generations_order_not_names_of_ranks(tmp_path: Path) -> None:
    for generation, rank, size in ((10, 0, 3), (9, 12345, 2), (2, 99999, 1)):
        journal = Journal(tmp_path, generation, rank, "aaaa")
        journal.done(0, f"f{generation}", size, 0, {})
        journal.close()
    assert merge(tmp_path).done[0].size == 3


# Case 26's sibling: a line is whole or absent.
def test_torn_and_strange_lines_count_as_never_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0, "aaaa")
    journal.done(0, "f0", 10, 1, {})
    journal.done(1, "f1", 10, 1, {})
    data = journal.path.read_bytes()
    for cut in range(len(data) + 1):
        journal.path.write_bytes(data[:cut])
        record = merge(tmp_path)
        assert sorted(record.done) == list(range(data[:cut].count(b"\n")))
        assert record.unclean == {journal.path.name}
    strange = b'\x00\xff\n[]\n{"done": "x"}\n{"done": 5}\n"s"\n{}\n{"failed": null}\n'
    journal.path.write_bytes(strange + data)
    assert sorted(merge(tmp_path).done) == [0, 1]


def test_an_end_or_a_check_makes_a_journal_clean(tmp_path: Path) -> None:
    torn = Journal(tmp_path, 1, 0, "aaaa")
    torn.done(0, "f0", 10, 1, {})
    assert merge(tmp_path).unclean == {torn.path.name}
    checker = Journal(tmp_path, 2, 0, "bbbb")
    checker.verified([torn.path.name])
    checker.close()
    assert not merge(tmp_path).unclean


def test_a_journal_without_a_line_is_no_file(tmp_path: Path) -> None:
    Journal(tmp_path / "new", 1, 0, "aaaa").close()
    assert not (tmp_path / "new").exists()
    assert merge(tmp_path / "new").done == {}


def test_errors_are_those_of_the_last_launch(tmp_path: Path) -> None:
    for generation in (1, 2):
        journal = Journal(tmp_path, generation, 0, "aaaa")
        journal.error(f"broke {generation}", "trace")
        journal.close()
    assert merge(tmp_path).errors == ["broke 2"]
