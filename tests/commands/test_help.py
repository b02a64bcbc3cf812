"""The help, mistyped words, and what a shell completes."""

import shlex
import subprocess
from pathlib import Path

import pytest

from runner.cli import main
from runner.options import COMMANDS, parse


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_command_are_right(name: str) -> None:
    """Each has the command's name, but for those of `run`, which may leave it out."""
    for example in COMMANDS[name].examples:
        words = shlex.split(example.partition(" > ")[0].removesuffix(')"').removeprefix('eval "$('))
        at = words.index("runner")
        assert parse(words[at + 1 :]).command == name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_defaults_examples_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert COMMANDS[name].examples[0] in text
    assert "exit codes:\n  0" in text
    assert "1 unexpected error" in text


def test_the_help_lists_every_command_once_in_its_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert text.count(f"\n  {name:<12}{command.does}\n") == 1
        assert text.count(f"\n{command.group}:\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["-q", "run", "job.yaml"], "-q: write it after run; see"),
        (["--limit=4", "status", "job.yaml"], "--limit=4: write it after status"),
        (["staus", "job.yaml"], "did you mean status?"),
        (["vaildate"], "did you mean validate?"),
        (["frobnicate"], "commands: run, "),
        (["status", "job.yaml", "--exitcode"], "did you mean --exit-code?"),
        (["job.yaml", "--limt", "4"], "did you mean --limit?"),
        (["job.yaml", "--swiftly"], "--swiftly; see runner run --help"),
        (["slurm", "job.yaml", "--gpus-per-node=8", "--time=1", "--part=x", "-x"], "-x"),
    ],
)
def test_a_mistyped_word_gets_the_right_one(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert meant in refusal(words, capsys)


def test_options_may_stand_before_the_manifest() -> None:
    for words in (["-q", "job.yaml"], ["job.yaml", "-q"], ["--output", "out", "-q", "job.yaml"]):
        options = parse(words)
        assert (options.command, options.quiet) == ("run", True)


def test_a_file_without_an_ending_is_a_manifest(tmp_path: Path) -> None:
    Path("status2").write_text("model: demo")
    assert parse(["status2"]).command == "run"
    assert parse(["missing.yaml"]).command == "run"
    assert parse(["folder/staus"]).command == "run"


def completed(words: str) -> list[str]:
    """What bash offers for the last of the words."""
    given = words.split(" ")
    script = (
        "source completion.sh\n"
        f"COMP_WORDS=({' '.join(map(shlex.quote, given))}); COMP_CWORD={len(given) - 1}\n"
        '_shtab_runner; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("tcsh", "zsh", "bash"):
        assert main(["completion", shell]) == 0
        assert "Copy this" not in (words := capsys.readouterr().out)
        assert words.startswith("#compdef runner\n") == (shell == "zsh")
    assert main(["completion", "bash"]) == 0
    Path("completion.sh").write_text(capsys.readouterr().out)
    Path("jobs.yaml").touch()
    assert completed("runner val") == ["validate"]
    assert completed("runner plan --inter") == ["--interconnect"]
    assert completed("runner status jo") == ["jobs.yaml"]


def test_help_in_no_terminal_has_no_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "\x1b" not in capsys.readouterr().out
