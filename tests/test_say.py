"""One voice: what reaches a terminal is printable, has a prefix, and is said by one rank."""

import json
import logging

import pytest

from runner import say as voice
from runner.cli import main
from runner.commands import stop
from runner.say import (
    RESULT,
    Handler,
    _OfLibrary,
    answer,
    cut,
    note,
    say,
    speak_as,
    to_json,
    write_also,
)

ESCAPE = "o\x1b]0;PWNED\x07\x1b[31mRED\x9b1m\u202e"  # a title, a colour, C1, right to left


@pytest.fixture(autouse=True)
def first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "_voice", voice._Voice())


def test_lines_have_a_prefix_and_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"one {ESCAPE}\ntwo")
    answer(ESCAPE)
    said = capsys.readouterr()
    assert said.err.startswith("runner: one o\ufffd]0;PWNED")
    assert said.err.endswith("\nrunner: two\n")
    assert all(c.isprintable() or c == "\n" for c in said.err + said.out)


def test_one_rank_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    speak_as(3)
    say("everybody knows")
    say("my own fault", every_rank=True)
    Handler().emit(logging.LogRecord("x", logging.ERROR, "", 1, "a %s", ("fault",), None))
    assert capsys.readouterr().err == "runner: rank 3: my own fault\nrunner: rank 3: a fault\n"


def test_long_lines_are_cut_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    say("a" * 5000 + "b")
    line = capsys.readouterr().err
    assert len(line) < 1100
    assert line.endswith("ab\n")
    assert cut("abcdefgh", 5) == "ab…gh"


def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    for least, shown in (
        (RESULT, ["done", "fault"]),
        (logging.INFO, ["progress", "done", "fault"]),
        (logging.DEBUG, ["progress", "done", "fault", "only for the file"]),
    ):
        speak_as(0, least=least)
        say("progress")
        say("done", level=RESULT)
        say("fault", level=logging.ERROR)
        note("only for the file")
        assert capsys.readouterr().err.splitlines() == [f"runner: {words}" for words in shown]


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    speak_as(2, as_json=True, is_logging=True)
    say(f"two lines\n{ESCAPE}", every_rank=True, level=logging.ERROR, fields={"done": 3})
    written: list[str] = []
    say("before the file")
    write_also(written.append)
    note("x" * 50_000)
    [line] = capsys.readouterr().err.splitlines()
    values = json.loads(line)
    assert (values["level"], values["rank"], values["done"]) == ("error", 2, 3)
    assert values["message"].startswith("two lines\no\ufffd")
    assert [len(json.loads(one)["message"]) for one in written][1:] == [15, 50_000]


# More than a pipe takes at a time, and the lines of two ranks become one.
@pytest.mark.parametrize("letter", ["x", '"', "é", "🦊", "\x1b"])
def test_a_json_line_fits_into_a_pipe(letter: str, capsys: pytest.CaptureFixture[str]) -> None:
    speak_as(0, as_json=True)
    for length in (3_000, 100_000):
        say(letter * length, level=logging.ERROR, fields={"done": 7})
    for line in capsys.readouterr().err.splitlines(keepends=True):
        assert 3_000 <= len(line) <= 4_096
        assert json.loads(line)["done"] == 7


def test_libraries_do_not_print_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str] = []
    speak_as(0, is_logging=True)
    write_also(words.append)
    library = _OfLibrary("library")
    library.parent = logging.Logger("root")
    library.parent.addHandler(Handler())
    library.addHandler(logging.StreamHandler())
    library.propagate = False
    library.warning("you may want torchvision")
    assert capsys.readouterr().err == ""
    assert words[0].endswith("warning you may want torchvision")


def test_json_keeps_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    answer(to_json({"prompt": ESCAPE + "\x7f"}))
    assert json.loads(capsys.readouterr().out) == {"prompt": ESCAPE + "\x7f"}


# Case 43. `run` says its output folder in its last line; it is in tests/run.
@pytest.mark.parametrize("command", ["validate", "plan", "status", "stop"])
def test_an_output_folder_cannot_command_the_terminal(
    command: str, capsys: pytest.CaptureFixture[str], manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "STARTING_S", 0.0)
    parameters = {"height": 128, "width": 128, "negative_prompt": ESCAPE}
    values = {"model": "demo", "seed": 1, "output": ESCAPE, "parameters": parameters}
    path = manifest(json.dumps({**values, "prompts": ["a"]}))
    main([command, str(path)])
    said = capsys.readouterr()
    assert said.out
    assert all(c.isprintable() or c == "\n" for c in said.err + said.out)


def test_status_says_why_the_last_launch_was_refused(
    capsys: pytest.CaptureFixture[str], manifest, tmp_path
) -> None:
    refused = tmp_path / "out/.runner/refused"
    refused.parent.mkdir(parents=True)
    refused.write_text("strategy: no")
    path = manifest(model="demo", output=str(tmp_path / "out"), prompts=["a"])
    assert main(["status", str(path)]) == 2
    assert capsys.readouterr().err == "runner: the last launch was refused: strategy: no\n"
