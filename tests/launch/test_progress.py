"""The progress of a job: its rate and the time left, as a bar or as lines."""

import io
import os
import re
import select
import sys
import termios
import time

import pytest

from runner.launch.progress import Progress, _Bar, _line, _Rate
from runner.launch.store import LocalStore
from runner.units import duration


def rate_of(first: int, *seen: tuple[int, float]) -> float:
    rate = _Rate(first)
    for finished, now in seen:
        rate.update(finished, now)
    return rate.per_second


def test_the_rate_does_not_count_the_start_up() -> None:
    assert rate_of(1, (0, 0), (0, 60)) == 0
    assert rate_of(1, (0, 0), (1, 60)) == 0
    assert rate_of(1, (0, 0), (1, 60), (3, 61), (3, 63)) == 2  # no slower while none comes
    # Four replicas: the first images say when the work began, not how fast it goes.
    assert rate_of(4, (1, 60), (4, 60.5)) == 0
    assert rate_of(4, (1, 60), (4, 60.5), (5, 70), (8, 70.5)) == 0.4
    assert rate_of(4, (3, 60), (7, 70), (11, 80)) == 0.4
    assert rate_of(4, (6, 60), (26, 70)) == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (15.4, "15 s"),
        (59.6, "1 min"),
        (3580, "1 h 0 min"),
        (3.16 * 3600, "3 h 10 min"),
        (100 * 3600, "100 h 0 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_line_shows_the_rate_and_the_time_left() -> None:
    assert _line(29, 0, 64, 0.0, None) == "29 of 64 images"
    assert _line(29, 2, 64, 2.4, 15) == "29 of 64 images, 2 failed, 2.4 images/s, about 15 s left"
    words = "29 of 64 images, 0.0031 images/s, about 3 h 10 min left"
    assert _line(29, 0, 64, 0.00307, 11400) == words
    assert _line(64, 0, 64, 9.96, 0.0) == "64 of 64 images, 10 images/s"


def test_the_time_left_on_a_bar_is_that_of_the_rate() -> None:
    bar = _Bar(total=64, file=io.StringIO(), ncols=200)
    bar.start_t = time.time() - 100
    bar.n = 29
    assert re.search(r"29/64 \[01:4\d<\?, \?", str(bar))
    bar.per_second = 2.5
    assert re.search(r"29/64 \[01:4\d<00:14, +2.50it/s", str(bar))
    bar.close()


@pytest.mark.parametrize("columns", [0, 80])
def test_a_terminal_without_columns_gets_lines(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24 if columns else 0, columns))
    store = LocalStore()
    store.add("finished", 2)
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        shown = ""
        with Progress(store, 6, 2, time.time(), 1):  # two were there before
            while not re.search("4/6|4 of 6", shown) and select.select([ours], [], [], 20)[0]:
                shown += os.read(ours, 10_000).decode()
    os.close(ours)
    assert ("runner: 4 of 6 images" in shown) == (columns == 0)
    assert ("4/6" in shown) == (columns == 80)
