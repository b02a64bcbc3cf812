"""Arguments → a command; errors → one line on one rank; outcomes → exit codes."""

import argparse
import dataclasses
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import runner
from runner.errors import (
    DiskError,
    ExitCode,
    InterruptedRunError,
    LaunchError,
    ManifestError,
    ReplicaLostError,
    RunnerError,
)
from runner.folder.files import DISK_ERRORS
from runner.folder.lock import live_shards
from runner.folder.paths import OutputFolder
from runner.launch.compiler import compile_cache
from runner.launch.shards import Shard
from runner.launch.stop import Stop
from runner.launch.world import World, tell_launcher, world_from
from runner.manifest.load import Loaded, load
from runner.say import Handler, answer, is_utf8, say, speak_as, to_json
from runner.units import counted, whole_number

__all__ = ["main"]

SAID_ONCE = (ManifestError, LaunchError, InterruptedRunError)
DEFAULT_GRACE_S = 20.0  # until the manifest is read
MOST = 10**9  # of anything that is counted on a command line
MOST_PROCESSES = 10**6
ENDS = {  # of a run that came to its end, to the launcher, which shows a traceback for any but 0
    ExitCode.FAILED: "some images failed; see failures.jsonl",
    ExitCode.INCOMPLETE: "stopped as asked; run the same command again to go on",
}
COMMANDS = ("run", "validate", "plan", "status", "stop", "slurm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # `python -m runner job.yaml` is short for `python -m runner run job.yaml`.
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        words.insert(0, "run")
    for word in words:
        if not is_utf8(word):
            say(f"{word}: not UTF-8; rename it")
            return int(ExitCode.REFUSED)
    options = _parser().parse_args(words)
    _hush_libraries()
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return int(command(options))
    except RunnerError as error:
        if not error.is_printed:
            say(str(error), every_rank=True)
        return int(error.exit_code)
    except OSError as error:  # a folder that is another user's, say
        problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        say(problem, every_rank=True)
        return int(ExitCode.ERROR)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        say(f"{message}; see {self.prog} --help")
        raise SystemExit(int(ExitCode.REFUSED))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="runner", description=runner.__doc__)
    parser.add_argument("--version", action="version", version=f"runner {runner.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = _command(commands, "run", _run, "make the images that are missing (the default command)")
    run.add_argument("--regenerate", action="store_true", help=_REGENERATE)
    run.add_argument("--self-check", action="store_true", help=_SELF_CHECK)
    _add_parts(run)

    _command(commands, "validate", _validate, "check the manifest alone: no GPU, no weights")

    plan = _command(commands, "plan", _plan, "show tasks, batches and shards; nothing is made")
    plan.add_argument("--world-size", type=_processes, metavar="N", help=_WORLD_SIZE)
    plan.add_argument("--devices", metavar="NxMEMORY", help=_DEVICES)
    plan.add_argument("--interconnect", choices=("nvlink", "pcie"), help="between them")
    plan.add_argument("--json", action="store_true", help="for machines")

    status = _command(commands, "status", _status, "say how the output folder stands")
    status.add_argument("--exit-code", action="store_true", help=_EXIT_CODE)
    _add_parts(status)

    _command(commands, "stop", _stop, "ask the jobs that work on the output folder to stop")

    slurm = _command(commands, "slurm", _slurm, "print a batch script for Slurm")
    slurm.add_argument("--nodes", type=_processes, default=1, metavar="N")
    slurm.add_argument("--gpus-per-node", type=_positive, required=True, metavar="N")
    slurm.add_argument("--time", required=True, metavar="T", help="the limit, as D-HH:MM:SS")
    slurm.add_argument("--cpus-per-gpu", type=_positive, default=4, metavar="N")
    slurm.add_argument("--partition", metavar="NAME")
    slurm.add_argument("--array", type=_positive, metavar="N", help="N one-node jobs, a shard each")
    slurm.add_argument(
        "--signal-lead-s", type=_positive, default=120, metavar="S", help=_SIGNAL_LEAD
    )
    slurm.add_argument("--submit", action="store_true", help="give the script to sbatch")
    return parser


_WORLD_SIZE = "processes (default: one a device of --devices, else 1)"
_DEVICES = "compare the strategies on such a machine, as in 4x80GiB"
_REGENERATE = "remake or remove finished images that the manifest no longer describes"
_SIGNAL_LEAD = "seconds before the limit at which the job begins to stop"
_SELF_CHECK = "first make one image by one rank too, and refuse to go on where they differ"
_UNSEEN = "one that has only been started is seen some seconds later: then ask again"
_EXIT_CODE = "answer with 0 complete, 3 some failed, 75 not complete, 2 refused"


def _command(commands: Any, name: str, command: Any, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=words, description=words)
    parser.set_defaults(command=command)
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="a YAML file")
    parser.add_argument("--output", type=_folder, metavar="DIR", help="instead of the manifest's")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="over the manifest's, as in parameters.height=64 (may be repeated)",
    )
    return parser


def _add_parts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N images")
    parser.add_argument(
        "--shard", type=_shard, metavar="I/N", help="only the I-th of N equal parts (job arrays)"
    )


def _positive(text: str) -> int:
    return _up_to(MOST, text)


def _processes(text: str) -> int:
    return _up_to(MOST_PROCESSES, text)


def _up_to(most: int, text: str) -> int:
    try:
        return whole_number(text, most)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]}: {error}") from None


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


def _shard(text: str) -> Shard:
    part, _, parts = text.partition("/")
    try:
        count = whole_number(parts, MOST_PROCESSES)
        return whole_number(part, count), count
    except ValueError:
        words = f"{text[:40]}: write I/N with 1 ≤ I ≤ N ≤ {MOST_PROCESSES}, as in 3/8"
        raise argparse.ArgumentTypeError(words) from None


def _output(options: argparse.Namespace, loaded: Loaded) -> Path:
    if options.output is not None:
        return Path(options.output)
    named = loaded.manifest.output.dir
    return Path(named) if named else Path("outputs") / loaded.path.stem


def _run(options: argparse.Namespace) -> int:
    stop = Stop(DEFAULT_GRACE_S)
    stop.install()
    world = world_from()
    if world.has_agent:
        stop.watch_launcher()
    # Importing torch and diffusers makes a million objects that stay; the collector would walk them
    # time and again, a sixth of the start-up. `pipeline.load` turns it on.
    gc.disable()
    try:
        code = _run_rank(options, world, stop)
        if code:
            tell_launcher(ENDS[code])
        return code
    except ReplicaLostError as error:
        tell_launcher(str(error))
        say(str(error), every_rank=True)
        os._exit(int(error.exit_code))  # the end of a broken process group could wait
    except RunnerError as error:
        is_refused = error.exit_code == ExitCode.REFUSED  # rank 0 says it, once
        tell_launcher("refused before work began" if is_refused else str(error))
        if isinstance(error, SAID_ONCE) and world.rank != 0:
            error.is_printed = True  # every rank reads the same file: rank 0 says it
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise DiskError(error.errno, f"{error.filename}: {error.strerror}") from None
        if isinstance(error, OSError) and error.filename and world.world_size == 1:
            raise  # told in one line
        tell_launcher(f"{type(error).__name__}: {error}")
        # No barrier and no clean-up that could wait: the launcher must see this exit at once.
        say(f"{type(error).__name__}: {error}", every_rank=True)
        say(traceback.format_exc().rstrip(), every_rank=True)
        os._exit(int(ExitCode.ERROR))
    finally:
        gc.enable()


def _run_rank(options: argparse.Namespace, world: World, stop: Stop) -> ExitCode:
    from runner.prepare.rank import Job
    from runner.run import run

    loaded = load(options.manifest, options.set)
    stop.grace_s = loaded.manifest.stop_grace_s
    if loaded.manifest.compile:
        compile_cache()  # before torch is imported, which would choose a folder below /tmp
    output = _output(options, loaded)
    _quiet(world)
    job = Job(
        loaded,
        output,
        limit=options.limit,
        regenerate=options.regenerate,
        self_check=options.self_check,
        shard=options.shard,
    )
    return run(job, world, stop)


def _quiet(world: World) -> None:
    """Rank 0 speaks for all."""
    speak_as(world.rank)
    level = logging.WARNING if world.rank == 0 else logging.ERROR
    logging.basicConfig(level=level, handlers=[Handler()], force=True)
    if world.rank != 0:
        warnings.simplefilter("ignore")


def _hush_libraries() -> None:
    """What they say of their own insides, where a user can do nothing: a torch function that a
    library still uses, and an image processor that the pipelines here do without."""
    warnings.filterwarnings("ignore", r"`torch\..*` is deprecated", FutureWarning)
    logging.getLogger("transformers.utils.import_utils").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "requires torchvision" not in record.getMessage()


def _validate(options: argparse.Namespace) -> int:
    from runner.plan import Plan

    loaded = load(options.manifest, options.set)
    plan = Plan(loaded.manifest, loaded.prompts, loaded.root)
    prompts, images = counted(len(loaded.prompts), "prompt"), counted(len(plan), "image")
    answer(f"{options.manifest}: good; {prompts}, {images}")
    for remark in loaded.remarks:
        answer(str(remark))
    return ExitCode.COMPLETE


def _plan(options: argparse.Namespace) -> int:
    from runner.commands.compare import machine_of
    from runner.commands.plan import show

    loaded = load(options.manifest, options.set)
    machine = machine_of(options.devices, options.interconnect)
    world_size = options.world_size or (machine.devices if machine else 1)
    if machine and world_size > machine.devices:
        raise LaunchError(
            f"--world-size {world_size}: more processes than the "
            f"{counted(machine.devices, 'device')} of --devices; use --world-size {machine.devices}"
        )
    output = _output(options, loaded)
    show(loaded, output, world_size, as_json=options.json, machine=machine)
    return ExitCode.COMPLETE


def _status(options: argparse.Namespace) -> int:
    from runner.commands.status import status

    loaded = load(options.manifest, options.set)
    summary = status(loaded, _output(options, loaded), options.limit, options.shard)
    answer(summary["sentence"] if options.exit_code else to_json(summary, indent=2))
    return int(summary["exit_code"]) if options.exit_code else ExitCode.COMPLETE


def _stop(options: argparse.Namespace) -> int:
    loaded = load(options.manifest, options.set)
    folder = OutputFolder(_output(options, loaded), loaded.manifest.output)
    jobs = live_shards(folder)
    for shard in jobs:
        folder.ask_to_stop(shard)
    asked = f"asked {counted(len(jobs), 'job')} to stop"
    answer(asked if jobs else f"no job works on {folder.dir}; {_UNSEEN}")
    return ExitCode.COMPLETE


def _slurm(options: argparse.Namespace) -> int:
    from runner.commands.slurm import Request, script, submit

    loaded = load(options.manifest, options.set)
    names = [field.name for field in dataclasses.fields(Request)]
    request = Request(**{name: getattr(options, name) for name in names})
    given = [word for assignment in options.set for word in ("--set", assignment)]
    if options.output is not None:
        given += ["--output", str(options.output)]
    text = script(options.manifest, _output(options, loaded), given, request)
    answer(submit(text) if options.submit else text.rstrip("\n"))
    return ExitCode.COMPLETE
