"""The command line: every command with its options, and how their values are read."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import runner
from runner.commands.slurm import Request
from runner.errors import ExitCode
from runner.launch.layout import Part
from runner.manifest.local_folder import check_local_folder
from runner.say import say
from runner.units import whole_number

__all__ = ["COMMANDS", "parse"]

MAX_COUNT = 10**9
MAX_PROCESSES = 10**6

Parser = argparse.ArgumentParser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options, with the command's name in `command`. Exits with 2 where they are wrong."""
    # `python -m runner job.yaml` is short for `python -m runner run job.yaml`.
    is_short = bool(words) and not words[0].startswith("-") and words[0] not in COMMANDS
    return _parser().parse_args(["run", *words] if is_short else words)


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


def _validate(parser: Parser) -> None:
    """No options of its own."""


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
    _add_limit_and_shard(parser)


def _stop(parser: Parser) -> None:
    """No options of its own."""


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
    parser.add_argument("--partition", metavar="NAME", help="Slurm partition")
    parser.add_argument(
        "--array",
        type=_count,
        metavar="N",
        help="an array of N one-node jobs; each makes one of N equal parts of the plan",
    )
    parser.add_argument(
        "--signal-lead-s",
        type=_count,
        default=default["signal_lead_s"],
        metavar="S",
        help="begin to stop S seconds before the time limit (default: %(default)s)",
    )
    parser.add_argument("--submit", action="store_true", help="give the script to sbatch")


# Each command: what it does, and its own options.
COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "run": ("make the images that are missing (the default command)", _run),
    "validate": ("check the manifest alone; needs no GPU and no weights", _validate),
    "plan": ("show tasks, batches and shards; make nothing", _plan),
    "status": ("show how far the output folder is", _status),
    "stop": ("ask the jobs that work on the output folder to stop", _stop),
    "slurm": ("print a batch script for Slurm", _slurm),
}


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        say(f"{message}; see {self.prog} --help")
        raise SystemExit(int(ExitCode.REFUSED))


def _parser() -> Parser:
    parser = _Parser(prog="runner", description=runner.__doc__)
    parser.add_argument("--version", action="version", version=f"runner {runner.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (words, add_options) in COMMANDS.items():
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("manifest", type=Path, metavar="MANIFEST", help="a YAML file")
        command.add_argument(
            "--output", type=_folder, metavar="DIR", help="use this folder, not the manifest's"
        )
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="replace a value of the manifest, for example parameters.height=64; repeatable",
        )
        add_options(command)
    return parser


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
