"""The command line: every command with its options, and how their values are read."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import runner
from runner.commands.slurm import Request
from runner.errors import ExitCode
from runner.launch.layout import Part
from runner.manifest.local_folder import check_local_folder
from runner.say import cut, say
from runner.units import whole_number

__all__ = ["COMMANDS", "parse", "parser"]

MAX_COUNT = 10**9
MAX_PROCESSES = 10**6
MAX_CELL = 1024  # pixels of an image on a contact sheet

WITHOUT_COMMAND = ("-h", "--help", "--version")

Parser = argparse.ArgumentParser

# What shtab takes for files and folders (shtab.FILE and shtab.DIRECTORY, which would be imported
# for every command).
FILES = {
    "file": {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"},
    "directory": {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"},
}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options, with the command's name in `command`. Exits with 2 where they are wrong."""
    # `python -m runner job.yaml` is short for `python -m runner run job.yaml`.
    is_short = bool(words) and words[0] not in (*COMMANDS, *WITHOUT_COMMAND)
    if is_short and words[0].startswith("-"):
        if command := next((word for word in words if word in COMMANDS), None):
            parser().error(f"{cut(words[0], 80)}: write it after {command}")
    elif is_short and not _is_file(words[0]):
        parser().error(f"{cut(words[0], 80)}: no command and no file{_nearest_command(words[0])}")
    options, rest = parser().parse_known_args(["run", *words] if is_short else words)
    if rest:
        _refuse(options.command, rest[0])
    return options


def _is_file(word: str) -> bool:
    """Whether a word in the place of the command can be a manifest, though one that is missing."""
    return os.sep in word or "." in word or os.path.lexists(word)


def _nearest_command(word: str) -> str:
    from runner.manifest.suggestions import nearest

    commands = {name: name for name in COMMANDS}
    return nearest(word, commands) or f"; commands: {', '.join(COMMANDS)}"


def _refuse(command: str, word: str) -> NoReturn:
    """A word that a command does not take. The right option, where one is near."""
    from runner.manifest.suggestions import nearest

    own = _Parser(prog=f"runner {command}")
    _add(own, COMMANDS[command])
    known = {name: name for action in own._actions for name in action.option_strings}
    near = nearest(word.partition("=")[0], known) if word.startswith("-") else ""
    own.error(f"unrecognized arguments: {cut(word, 80)}{near}")


def _run(parser: Parser) -> None:
    parser.add_argument(
        "--regenerate",
        action="store_true",
        help="remake or remove finished images that the manifest no longer describes",
    )
    parser.add_argument(
        "--self-check",
        action="store_true",
        help="first compare one image with that of plain diffusers; stop if they differ",
    )
    _add_limit_and_shard(parser)
    _add_voice(parser)


def _remake(parser: Parser) -> None:
    parser.add_argument(
        "--show", action="store_true", help="print the manifest that makes it; make nothing"
    )
    _add_voice(parser)
    parser.set_defaults(limit=None, regenerate=False, self_check=False, part=None)


def _plan(parser: Parser) -> None:
    parser.add_argument(
        "--world-size",
        type=_processes,
        metavar="N",
        help="number of processes (default: one for each device of --devices, else 1)",
    )
    parser.add_argument(
        "--devices",
        metavar="NxMEMORY",
        help="compare all strategies on such a machine, for example 4x80GiB",
    )
    parser.add_argument(
        "--interconnect", choices=("nvlink", "pcie"), help="how these devices are connected"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _status(parser: Parser) -> None:
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="print one line; exit with 0 (complete), 3 (some images failed), 75 (not complete) "
        "or 2 (refused)",
    )
    parser.add_argument(
        "--watch", action="store_true", help="show it on the terminal until the run ends"
    )
    _add_limit_and_shard(parser)


def _verify(parser: Parser) -> None:
    parser.add_argument(
        "--sample",
        type=_count_or_none,
        default=20,
        metavar="N",
        help="make N images again, chosen at random; 0: look at the files alone, without a model "
        "(default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_voice(parser)


def _sheet(parser: Parser) -> None:
    parser.add_argument(
        "--file", type=_picture, metavar="FILE", help="a .png or .webp (default: NAME-sheet.png)"
    )
    parser.add_argument("--columns", type=_count, metavar="N", help="images in a line")
    parser.add_argument(
        "--size",
        type=_pixels,
        metavar="N",
        help=f"pixels of an image, at most {MAX_CELL} (default: fewer for more images)",
    )


def _init(parser: Parser) -> None:
    words = "a file or folder of prompts, as `prompts: {file: …}` takes it"
    found = parser.add_argument("list", type=Path, metavar="LIST", help=words)
    _complete_with(found, "file")
    parser.add_argument(
        "--model", default="demo", help="a hub ID or a local folder (default: %(default)s)"
    )


def _no_options(parser: Parser) -> None:
    """A command without options of its own."""


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def _slurm(parser: Parser) -> None:
    default = {field.name: field.default for field in dataclasses.fields(Request)}
    parser.add_argument(
        "--nodes",
        type=_processes,
        default=default["nodes"],
        metavar="N",
        help="nodes of the job (default: %(default)s)",
    )
    parser.add_argument(
        "--gpus-per-node", type=_count, required=True, metavar="N", help="one process for each GPU"
    )
    parser.add_argument("--time", required=True, metavar="T", help="time limit, as D-HH:MM:SS")
    parser.add_argument(
        "--cpus-per-gpu",
        type=_count,
        default=default["cpus_per_gpu"],
        metavar="N",
        help="CPU cores for each GPU (default: %(default)s)",
    )
    for name in ("partition", "account", "qos"):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"Slurm's --{name}")
    parser.add_argument(
        "--sbatch-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="another option of sbatch, as in --sbatch-arg=--constraint=h100; repeatable",
    )
    parser.add_argument(
        "--array",
        type=_count,
        metavar="N",
        help="an array of N one-node jobs; each makes one of N equal parts of the plan. "
        "The site's MaxArraySize limits N",
    )
    parser.add_argument(
        "--signal-lead-s",
        type=_count,
        default=default["signal_lead_s"],
        metavar="S",
        help="begin to stop S seconds before the time limit (default: %(default)s)",
    )
    parser.add_argument("--submit", action="store_true", help="give the script to sbatch")


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line."""

    group: str
    does: str
    examples: Sequence[str]
    codes: str  # its exit codes
    add_options: Callable[[Parser], None]
    reads: str | None = "MANIFEST"  # its argument, where it is a file


RUN_CODES = (
    "0 every image is there; 2 refused before work began; 3 some images failed; 75 not complete, "
    "run again; 1 unexpected error"
)
LOOK_CODES = "0 good; 2 refused, with the reasons; 1 unexpected error"
DONE_CODES = "0 done; 2 refused; 1 unexpected error"

COMMANDS = {
    "run": Command(
        "make images",
        "make the images that are missing (the default command)",
        (
            "runner job.yaml",
            "runner job.yaml --limit 4 --set parameters.num_inference_steps=8 --output draft",
            "torchrun --standalone --nproc-per-node 8 -m runner job.yaml",
        ),
        RUN_CODES,
        _run,
    ),
    "remake": Command(
        "make images",
        "make an image again, from what the image itself says",
        (
            "runner remake outputs/job/000003.png",
            "runner remake 000003.png --set parameters.num_inference_steps=50",
            "runner remake 000003.png --set model=my-model --show > again.yaml",
        ),
        "0 made, the same or close; 2 refused before work began; 3 it failed or is different; "
        "75 not complete, run again; 1 unexpected error",
        _remake,
        reads="IMAGE",
    ),
    "init": Command(
        "before a run",
        "write a manifest to begin with, from a list of prompts",
        ("runner init prompts.csv --model Qwen/Qwen-Image",),
        DONE_CODES,
        _init,
        reads=None,
    ),
    "validate": Command(
        "before a run",
        "check the manifest alone; needs no GPU and no weights",
        ("runner validate job.yaml",),
        LOOK_CODES,
        _no_options,
    ),
    "plan": Command(
        "before a run",
        "show tasks, batches and shards; make nothing",
        ("runner plan job.yaml --world-size 8", "runner plan job.yaml --devices 4x80GiB"),
        LOOK_CODES,
        _plan,
    ),
    "schema": Command(
        "before a run",
        "print the JSON Schema of a manifest, for editors and programs",
        ("runner schema > manifest.schema.json",),
        DONE_CODES,
        _no_options,
        reads=None,
    ),
    "status": Command(
        "during and after a run",
        "show how far the output folder is",
        (
            "runner status job.yaml",
            "runner status job.yaml --watch",
            "runner status job.yaml --exit-code",
        ),
        "0, with --exit-code as a run; 2 refused; 1 unexpected error",
        _status,
    ),
    "report": Command(
        "during and after a run",
        "write report.html: one page that shows the images and how the job went",
        ("runner report job.yaml",),
        DONE_CODES,
        _no_options,
    ),
    "verify": Command(
        "during and after a run",
        "prove that the images are those of the manifest; make a sample again and compare",
        ("runner verify job.yaml", "runner verify job.yaml --sample 0"),
        "0 every image is there and right; 2 refused; 3 some are not; 75 right so far, but not "
        "complete; 1 unexpected error",
        _verify,
    ),
    "sheet": Command(
        "during and after a run",
        "draw all images into one picture, those of a sweep by its axes",
        ("runner sheet job.yaml", "runner sheet job.yaml --file job.webp --columns 8"),
        DONE_CODES,
        _sheet,
    ),
    "stop": Command(
        "during and after a run",
        "ask the jobs that work on the output folder to stop",
        ("runner stop job.yaml",),
        "0 asked, also where no job works; 2 refused; 1 unexpected error",
        _no_options,
    ),
    "slurm": Command(
        "clusters and shells",
        "print a batch script for Slurm",
        ("runner slurm job.yaml --gpus-per-node 8 --time 04:00:00 --submit",),
        DONE_CODES,
        _slurm,
    ),
    "completion": Command(
        "clusters and shells",
        "print what lets a shell complete commands and options",
        ('eval "$(runner completion bash)"',),
        DONE_CODES,
        _completion,
        reads=None,
    ),
}


class _Parser(Parser):
    """Wrong words are one line on stderr and exit code 2."""

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see {self.prog} --help")
        raise SystemExit(int(ExitCode.REFUSED))


class _Overview(argparse.RawDescriptionHelpFormatter):
    """Leaves out argparse's own list of the commands, which has no groups."""

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)


def parser() -> Parser:
    """The parser of the whole command line."""
    whole = _Parser(
        prog="runner",
        description=runner.__doc__,
        epilog=_overview(),
        formatter_class=_Overview,
    )
    whole.add_argument("--version", action="version", version=f"runner {runner.__version__}")
    places = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        _add(places.add_parser(name, **_words(command)), command)
    return whole


def _overview() -> str:
    """All commands in their groups, examples and exit codes, as the help shows them."""
    lines: list[str] = []
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        lines += [f"{group}:"]
        lines += [
            f"  {name:<12}{command.does}"
            for name, command in COMMANDS.items()
            if command.group == group
        ]
        lines += [""]
    lines += ["`runner job.yaml` is short for `runner run job.yaml`. `runner COMMAND --help` has"]
    lines += ["the options, examples and exit codes of a command.", ""]
    return "\n".join([*lines, *_wrapped("exit codes:", RUN_CODES)])


def _words(command: Command) -> dict[str, Any]:
    """What the help of a command says besides its options."""
    examples = ["examples:", *(f"  {example}" for example in command.examples), ""]
    return {
        "help": command.does,
        "description": command.does,
        "epilog": "\n".join([*examples, *_wrapped("exit codes:", command.codes)]),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def _wrapped(title: str, codes: str) -> list[str]:
    return [title, *(f"  {code}" for code in codes.split("; "))]


def _add(parser: Parser, command: Command) -> None:
    if command.reads is not None:
        _add_file(parser, command.reads)
    command.add_options(parser)


def _add_file(parser: Parser, name: str) -> None:
    """The manifest or image, and the options of all commands that read one."""
    words = {"MANIFEST": "a YAML file", "IMAGE": "a PNG that the runner wrote"}[name]
    file = parser.add_argument("manifest", type=Path, metavar=name, help=words)
    _complete_with(file, "file")
    output = parser.add_argument(
        "--output",
        type=_folder,
        metavar="DIR",
        help="use this folder (default: the manifest's, else outputs/NAME)",
    )
    _complete_with(output, "directory")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a value of the manifest, for example parameters.height=64; repeatable",
    )


def _complete_with(action: argparse.Action, kind: str) -> None:
    """What shtab completes the word of an argument with."""
    action.complete = FILES[kind]  # type: ignore[attr-defined]


def _add_voice(parser: Parser) -> None:
    """How much of what happens is printed, and in which form."""
    words = parser.add_mutually_exclusive_group()
    words.add_argument(
        "-q", "--quiet", action="store_true", help="print only problems and the last line"
    )
    words.add_argument(
        "-v", "--verbose", action="store_true", help="print also what the log files have"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="lines of the terminal and of the log files; json: one object a line "
        "(default: %(default)s)",
    )


def _add_limit_and_shard(parser: Parser) -> None:
    parser.add_argument("--limit", type=_count, metavar="N", help="only the first N images")
    parser.add_argument(
        "--shard",
        dest="part",
        type=_part,
        metavar="I/N",
        help="only the I-th of N equal parts of the plan (for job arrays)",
    )


def _count(text: str) -> int:
    return _up_to(MAX_COUNT, text)


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _picture(text: str) -> Path:
    if "\0" in text or Path(text).suffix.lower() not in (".png", ".webp"):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: write a name that ends with .png or .webp"
        )
    return Path(text)


def _pixels(text: str) -> int:
    return _up_to(MAX_CELL, text)


def _processes(text: str) -> int:
    return _up_to(MAX_PROCESSES, text)


def _up_to(most: int, text: str) -> int:
    try:
        return whole_number(text, most)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]}: {error}") from None


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("not a path")
    try:
        return Path(check_local_folder(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _part(text: str) -> Part:
    number, _, parts = text.partition("/")
    try:
        count = whole_number(parts, MAX_PROCESSES)
        return whole_number(number, count), count
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:40]}: write I/N with 1 ≤ I ≤ N ≤ {MAX_PROCESSES}, for example 3/8"
        ) from None
