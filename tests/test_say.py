"""One voice: what reaches a terminal is printable, has a prefix, and is said by one rank."""

import json
import logging

import pytest

from runner import say as voice
from runner.cli import main
from runner.say import Handler, answer, cut, say, speak_as, to_json

ESCAPE = "o\x1b]0;PWNED\x07\x1b[31mRED\x9b1m\u202e"  # a title, a colour, C1, right to left


@pytest.fixture(autouse=True)
def first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "_rank", 0)


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


def test_json_keeps_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    answer(to_json({"prompt": ESCAPE + "\x7f"}))
    assert json.loads(capsys.readouterr().out) == {"prompt": ESCAPE + "\x7f"}


# Case 43. `run` says its output folder in its last line; it is in tests/run.
@pytest.mark.parametrize("command", ["validate", "plan", "status", "stop"])
def test_an_output_folder_cannot_command_the_terminal(
    command: str, capsys: pytest.CaptureFixture[str], manifest
) -> None:
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
