"""Journals: whole lines, merged by generation, packed once there are many."""

import itertools
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jobs import print_of

from runner.folder import pack as pack_module
from runner.folder.journal import Journal, merge
from runner.folder.merged_record import MergedRecord
from runner.folder.pack import pack
from runner.folder.paths import OutputFolder
from runner.folder.scan import scan
from runner.launch.pulse import Pulse
from runner.manifest.schema import OutputSpec

IMAGES = 20


def test_later_generations_win_and_done_beats_failed_within_one(tmp_path: Path) -> None:
    first = Journal(tmp_path, 1, 0, "aaaa")
    first.done(0, print_of(0), 10, 1, {"seconds": 1.25, "width": 3})
    first.failed(1, print_of(1), "error", "bad", "trace")
    first.done(2, print_of(2), 10, 1, {})
    first.close()
    second, third = Journal(tmp_path, 2, 0, "bbbb"), Journal(tmp_path, 2, 1, "bbbb")
    second.done(1, print_of(1), 20, 2, {})
    third.failed(1, print_of(1), "error", "worse", "")
    third.failed(2, print_of(2), "error", "again", "")
    second.close()
    third.close()
    record = merge(tmp_path, IMAGES)
    assert (record.generation, record.launch) == (2, "bbbb")
    assert {index: done.size for index, done in record.done.items()} == {0: 10, 1: 20, 2: 10}
    assert {index: failed.error for index, failed in record.failed.items()} == {2: "again"}
    assert record.done[0] == (
        *(print_of(0), 10, 1, {"width": 3, "seconds": 1.25}),
        *("000001-00000-aaaa.jsonl", 1),
    )
    assert (len(record.done), list(record.done), 3 in record.done) == (3, [0, 1, 2], False)
    assert not record.unclean


def test_generations_order_not_names_of_ranks(tmp_path: Path) -> None:
    for generation, rank, size in ((10, 0, 3), (9, 12345, 2), (2, 99999, 1)):
        journal = Journal(tmp_path, generation, rank, "aaaa")
        journal.done(0, print_of(generation), size, 0, {})
        journal.close()
    assert merge(tmp_path, IMAGES).done[0].size == 3


def test_a_generation_has_any_number_of_digits_and_no_line_a_later_one(tmp_path: Path) -> None:
    for generation in (999_999, 1_000_001):
        journal = Journal(tmp_path, generation, 0, "aaaa")
        journal.done(0, print_of(0), generation, 0, {})
        with journal.path.open("a") as file:
            line = {"done": 1, "fingerprint": print_of(0), "size": generation, "crc": 0, "made": {}}
            file.write(json.dumps({**line, "generation": 10**18}) + "\n")
            line = {"failed": 2, "fingerprint": print_of(0), "kind": "error", "error": "bad"}
            file.write(json.dumps({**line, "generation": 10**18}) + "\n")
    late = Journal(tmp_path, 1_000_002, 0, "bbbb")
    late.done(2, print_of(2), 7, 0, {})
    record = merge(tmp_path, IMAGES)
    assert record.generation == 1_000_002
    assert [done.size for done in record.done.values()] == [1_000_001, 1_000_001, 7]
    assert not record.failed


def test_files_with_other_names_are_no_journals(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0, "aaaa")
    journal.done(0, print_of(0), 10, 0, {})
    for name in (b"000001-\xff.jsonl", b"notes.jsonl", b"-.jsonl", b"000001-00000-aaaa (1).jsonl"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_text("{}\n")
    assert list(merge(tmp_path, IMAGES).journals) == [journal.path.name]


def test_images_far_beyond_the_plan_are_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0, "aaaa")
    for index in (-1, 0, IMAGES + 5, 10**9, 10**15):
        journal.done(index, print_of(0), 10, 0, {})
        journal.failed(index, print_of(0), "error", "bad", "")
    record = merge(tmp_path, IMAGES)
    assert list(record.done) == [0, IMAGES + 5]
    assert not record.failed


# Case 26's sibling: a line is whole or absent.
def test_torn_and_strange_lines_count_as_never_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0, "aaaa")
    journal.done(0, print_of(0), 10, 1, {})
    journal.done(1, print_of(1), 10, 1, {})
    data = journal.path.read_bytes()
    for cut in range(len(data) + 1):
        journal.path.write_bytes(data[:cut])
        record = merge(tmp_path, IMAGES)
        assert sorted(record.done) == list(range(data[:cut].count(b"\n")))
        assert record.unclean == {journal.path.name}
    strange = b'\x00\xff\n[]\n{"done": "x"}\n{"done": 5}\n"s"\n{}\n{"failed": null}\n'
    journal.path.write_bytes(strange + data)
    assert sorted(merge(tmp_path, IMAGES).done) == [0, 1]


def test_an_end_or_a_check_makes_a_journal_clean(tmp_path: Path) -> None:
    torn = Journal(tmp_path, 1, 0, "aaaa")
    torn.done(0, print_of(0), 10, 1, {})
    assert merge(tmp_path, IMAGES).unclean == {torn.path.name}
    checker = Journal(tmp_path, 2, 0, "bbbb")
    checker.verified([torn.path.name])
    checker.close()
    assert not merge(tmp_path, IMAGES).unclean


def test_a_journal_without_a_line_is_no_file(tmp_path: Path) -> None:
    Journal(tmp_path / "new", 1, 0, "aaaa").close()
    assert not (tmp_path / "new").exists()
    assert not merge(tmp_path / "new", IMAGES).done


def test_each_launch_has_its_own_account(tmp_path: Path) -> None:
    for generation, launch in ((1, "aaaa"), (2, "bbbb"), (2, "cccc")):  # two are sibling shards
        journal = Journal(tmp_path, generation, 0, launch)
        journal.error(f"broke {launch}", "trace")
        journal.worked(Pulse(0, images=3, start_s=1.5, busy_s=generation))
        journal.close()
    gave_up = Journal(tmp_path, 2, 1, "cccc")
    gave_up.gave_up("no memory")
    record = merge(tmp_path, IMAGES)
    account = record.account("bbbb")
    assert (account.errors, account.gave_up) == (["broke bbbb"], False)
    assert account.pulses == [Pulse(0, images=3, start_s=1.5, busy_s=2.0)]
    assert record.account("cccc").errors == ["broke cccc", "no memory"]
    assert record.account("cccc").gave_up


def fill(folder: Path, launches: int = 119) -> None:
    """Many launches, of which some died."""
    draw = random.Random(0)
    for generation in range(1, launches + 1):
        for rank in range(2):
            journal = Journal(folder, generation, rank, f"{generation:08x}")
            for index in draw.sample(range(IMAGES), 2):
                made = {"width": generation % 2, "seconds": draw.random()}
                journal.done(index, print_of(generation), 100 + generation, generation, made)
                journal.failed(draw.randrange(IMAGES), print_of(7), "error", f"{generation}", "")
            if generation % 10:
                journal.close()


def said(record: MergedRecord) -> object:
    """All that counts of a record."""
    done = {index: done._replace(journal="") for index, done in record.done.items()}
    return done, record.failed, record.generation, record.unclean


def never() -> set[str]:
    raise AssertionError("looked up who lives, for nothing")


@pytest.fixture
def packs_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_module, "MANY_JOURNALS", 50)


def test_packed_journals_say_the_same(tmp_path: Path, packs_early: None) -> None:
    fill(tmp_path)
    record = merge(tmp_path, IMAGES)
    live = {f"{119:08x}"}
    pack(tmp_path, record, lambda: live, "0000beef")
    left = sorted(path.name for path in tmp_path.iterdir())
    unclean = 2 * (119 // 10)
    assert len(left) == unclean + 2 + 1  # those of the dead, which nobody looked through; the pack
    assert f"{119:06d}-packed-0000beef.jsonl" in left
    packed = merge(tmp_path, IMAGES)
    assert said(packed) == said(record)
    assert packed.lines < record.lines
    pack(tmp_path, packed, never, "0000cafe")  # few enough, so nobody is looked up
    assert left == sorted(path.name for path in tmp_path.iterdir())
    packed.unclean.clear()  # all of them were looked through
    packed.lines = 10**6  # and most lines hold no more
    pack(tmp_path, packed, set, "0000f00d")
    assert [path.name for path in tmp_path.iterdir()] == [f"{119:06d}-packed-0000f00d.jsonl"]
    assert said(merge(tmp_path, IMAGES)) == said(packed)


def test_a_journal_that_grew_since_the_merge_stays(tmp_path: Path, packs_early: None) -> None:
    fill(tmp_path)
    record = merge(tmp_path, IMAGES)
    late = Journal(tmp_path, 200, 0, "aaaaaaaa")
    late.done(3, print_of(3), 7, 7, {})
    with (tmp_path / f"{118:06d}-00000-{118:08x}.jsonl").open("ab") as file:
        file.write(b'{"failed":4,"fingerprint":"00","kind":"late","error":"late"}\n')
    pack(tmp_path, record, set, "0000beef")
    after = merge(tmp_path, IMAGES)
    assert after.done[3].size == 7
    assert f"{118:06d}-00000-{118:08x}.jsonl" in after.journals


def test_a_kill_while_packing_loses_nothing(tmp_path: Path, packs_early: None) -> None:
    """Killed before its first step with a file, its second, … until it comes to its end."""
    fill(tmp_path / "before", launches=28)
    whole = said(merge(tmp_path / "before", IMAGES))
    left_a_part = False
    for step in itertools.count(1):
        folder = OutputFolder(tmp_path / f"{step}", OutputSpec())
        shutil.copytree(tmp_path / "before", folder.journals)
        child = os.fork()
        if not child:
            record = merge(folder.journals, IMAGES)
            sys.addaudithook(kill_at(step))
            pack(folder.journals, record, set, "0000beef")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert said(merge(folder.journals, IMAGES)) == whole
        parts = [path for path in folder.journals.iterdir() if path.suffix == ".part"]
        assert scan(folder, range(IMAGES)).temporaries == [(path, "0000beef") for path in parts]
        left_a_part |= bool(parts)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert step > 50
    assert left_a_part


def kill_at(step: int) -> Callable[[str, object], None]:
    left = itertools.count(step, -1)

    def hook(event: str, _: object) -> None:
        if event in ("open", "os.rename", "os.remove") and next(left) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook
