"""Arguments → a command → its exit code. Errors become one line, printed by one rank."""

import argparse
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from runner.errors import (
    DiskError,
    ExitCode,
    InterruptedRunError,
    LaunchError,
    ManifestError,
    ReplicaLostError,
    RunnerError,
)
from runner.launch.compiler import compile_cache
from runner.launch.stop import Stop
from runner.launch.world import World, report_to_launcher, world_from
from runner.options import parse, parser
from runner.say import RESULT, Handler, answer, is_utf8, route_libraries, say, speak_as, to_json
from runner.units import counted

if TYPE_CHECKING:
    from runner.manifest.load import Loaded

__all__ = ["main"]

LET_RANK_0_SPEAK_S = 10.0
DEFAULT_GRACE_S = 20.0  # until the manifest is read
SAME_ON_ALL_RANKS = (ManifestError, LaunchError, InterruptedRunError)
# Why a run that came to its end exits with another code than 0, for the launcher's traceback.
ENDS = {
    ExitCode.FAILED: "some images failed; see failures.jsonl",
    ExitCode.INCOMPLETE: "run the same command again to go on",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        if not is_utf8(word):
            say(f"{word}: not UTF-8; rename it")
            return int(ExitCode.REFUSED)
    options = parse(words)
    # Imports make objects that stay, torch and diffusers a million of them. The collector would
    # walk them again and again, a sixth of a start-up. `render.load` turns it on again.
    gc.disable()
    try:
        return int(_COMMANDS[options.command](options))
    except RunnerError as error:
        if not error.is_printed:
            say(str(error), every_rank=True, level=logging.ERROR)
        return int(error.exit_code)
    except OSError as error:  # for example a folder of another user
        problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        say(problem, every_rank=True, level=logging.ERROR)
        return int(ExitCode.ERROR)
    finally:
        gc.enable()


# --- the commands: what the options mean to them; each is imported when it is needed ------------


def _run(options: argparse.Namespace) -> int:
    stop = Stop(DEFAULT_GRACE_S)
    stop.install()
    world = world_from()
    _set_up_output(options, world)
    if world.has_agent:
        stop.watch_launcher()
    try:
        code = _run_rank(options, world, stop)
    except RunnerError as error:
        _report_end(error, world, stop)
        raise
    except Exception as error:
        if isinstance(error, OSError):
            _raise_if_one_line_is_enough(error, world)
        _end_with_traceback(error)
    if code:
        why = "stopped as asked; " if stop.requested and code == ExitCode.INCOMPLETE else ""
        report_to_launcher(why + ENDS[code])
    return code


def _run_rank(options: argparse.Namespace, world: World, stop: Stop) -> ExitCode:
    loaded, output = _manifest_and_output(options)
    stop.grace_s = loaded.manifest.stop_grace_s
    if loaded.manifest.compile:
        compile_cache()  # before torch is imported, which would choose a folder below /tmp
    with stop.loading():
        from runner.prepare.rank import Job
        from runner.run import run

    if options.command == "remake":
        from runner.commands.remake import threads_of
        from runner.launch.devices import use_threads

        use_threads(threads_of(options.manifest))
    job = Job(
        loaded,
        output,
        limit=options.limit,
        regenerate=options.regenerate,
        self_check=options.self_check,
        part=options.part,
    )
    return run(job, world, stop)


def _remake(options: argparse.Namespace) -> int:
    from runner.commands.remake import compared, manifest_text

    image: Path = options.manifest
    loaded, output = _manifest_and_output(options)
    if options.show:
        answer(manifest_text(loaded, image))
        return ExitCode.COMPLETE
    code = _run(options)
    if code == ExitCode.COMPLETE and world_from().rank == 0:
        is_same, words = compared(image, output, loaded)
        answer(words)
        return ExitCode.COMPLETE if is_same else ExitCode.FAILED
    return code


def _init(options: argparse.Namespace) -> int:
    from runner.commands.init import init

    init(options.list, options.model)
    return ExitCode.COMPLETE


def _validate(options: argparse.Namespace) -> int:
    from runner.commands.validate import validate

    loaded, _ = _manifest_and_output(options)
    validate(loaded)
    return ExitCode.COMPLETE


def _plan(options: argparse.Namespace) -> int:
    from runner.commands.compare import machine_of
    from runner.commands.plan import show

    loaded, output = _manifest_and_output(options)
    machine = machine_of(options.devices, options.interconnect)
    world_size = options.world_size or (machine.devices if machine else 1)
    if machine and world_size > machine.devices:
        raise LaunchError(
            f"--world-size {world_size}: more processes than the "
            f"{counted(machine.devices, 'device')} of --devices; use --world-size {machine.devices}"
        )
    show(loaded, output, world_size, as_json=options.json, machine=machine)
    return ExitCode.COMPLETE


def _status(options: argparse.Namespace) -> int:
    from runner.commands.status import status

    loaded, output = _manifest_and_output(options)
    if options.watch:
        from runner.commands.watch import watch

        if options.limit is not None or options.exit_code:
            raise LaunchError("--watch: without --limit and --exit-code")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the cursor must come back
        with contextlib.suppress(KeyboardInterrupt):
            watch(loaded, output, options.part)
        return ExitCode.COMPLETE
    summary = status(loaded, output, options.limit, options.part)
    answer(summary["sentence"] if options.exit_code else to_json(summary, indent=2))
    return int(summary["exit_code"]) if options.exit_code else ExitCode.COMPLETE


def _report(options: argparse.Namespace) -> int:
    from runner.commands.report import report

    answer(str(report(*_manifest_and_output(options))))
    return ExitCode.COMPLETE


def _sheet(options: argparse.Namespace) -> int:
    from runner.commands.sheet import sheet

    loaded, output = _manifest_and_output(options)
    answer(str(sheet(loaded, output, options.file, options.columns, options.size)))
    return ExitCode.COMPLETE


def _schema(options: argparse.Namespace) -> int:
    from runner.commands.schema import print_schema

    print_schema()
    return ExitCode.COMPLETE


def _completion(options: argparse.Namespace) -> int:
    import shtab

    lines = shtab.complete(parser(), options.shell).splitlines()
    # It begins with words on where to copy it, which nobody has to; zsh reads `#compdef`.
    start = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    head = [line for line in lines[:start] if line.startswith("#compdef")]
    answer("\n".join([*head, *lines[start:]]))
    return ExitCode.COMPLETE


def _verify(options: argparse.Namespace) -> int:
    from runner.commands.verify import verify

    stop = Stop(DEFAULT_GRACE_S)
    stop.install()
    _set_up_output(options, World())
    loaded, output = _manifest_and_output(options)
    found = verify(loaded, output, options.sample, World(), stop)
    answer(to_json(found.values(), indent=2) if options.json else "\n".join(found.lines()))
    return found.exit_code


def _stop(options: argparse.Namespace) -> int:
    from runner.commands.stop import stop

    stop(*_manifest_and_output(options))
    return ExitCode.COMPLETE


def _slurm(options: argparse.Namespace) -> int:
    from runner.commands.slurm import Request, script, submit

    _, output = _manifest_and_output(options)
    names = [field.name for field in dataclasses.fields(Request)]
    values = {name: getattr(options, name) for name in names}
    request = Request(**{**values, "sbatch_arg": tuple(options.sbatch_arg)})
    given = [word for assignment in options.set for word in ("--set", assignment)]
    if options.output is not None:
        given += ["--output", str(options.output)]
    text = script(options.manifest, output, given, request)
    answer(submit(text) if options.submit else text.rstrip("\n"))
    return ExitCode.COMPLETE


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "remake": _remake,
    "init": _init,
    "validate": _validate,
    "plan": _plan,
    "schema": _schema,
    "status": _status,
    "report": _report,
    "verify": _verify,
    "sheet": _sheet,
    "stop": _stop,
    "slurm": _slurm,
    "completion": _completion,
}


def _manifest_and_output(options: argparse.Namespace) -> "tuple[Loaded, Path]":
    """The manifest, and the output folder: --output; for the manifest as run, its own folder; else
    the manifest's, else by its name."""
    if options.command == "remake":
        from runner.commands.remake import remake

        return remake(options.manifest, options.set, options.output)
    from runner.manifest.load import load

    loaded = load(options.manifest, options.set)
    folder = loaded.path.parent
    is_recorded = loaded.path.name == "manifest.yaml" and _is_output(folder)
    given = folder if is_recorded else loaded.manifest.output.dir  # wherever it was copied
    output = Path(options.output or given or Path("outputs") / loaded.path.stem)
    return loaded, output if output.parts else Path.cwd()  # messages need a name


def _is_output(folder: Path) -> bool:
    return (folder / ".runner").is_dir()


# --- what the terminal shows --------------------------------------------------------------------


def _set_up_output(options: argparse.Namespace, world: World) -> None:
    """Lines and logs of this rank; rank 0 prints for all."""
    least = RESULT if options.quiet else logging.DEBUG if options.verbose else logging.INFO
    as_json = options.log_format == "json"
    speak_as(world.rank, least=least, as_json=as_json, is_logging=True)
    logging.basicConfig(level=logging.WARNING, handlers=[Handler()])
    logging.getLogger("runner").setLevel(logging.INFO)
    # Warnings of libraries are about their own code: they are for the log file.
    logging.captureWarnings(True)
    route_libraries()


# --- how a rank ends ----------------------------------------------------------------------------


def _report_end(error: RunnerError, world: World, stop: Stop) -> None:
    """Give the launcher the reason, and let rank 0 alone print what every rank finds. The others
    wait for it: a launcher ends all ranks when the first one exits."""
    if isinstance(error, ReplicaLostError):
        report_to_launcher(str(error))
        say(str(error), every_rank=True, level=logging.ERROR)
        os._exit(int(error.exit_code))  # to close a broken process group could hang
    is_refused = error.exit_code == ExitCode.REFUSED  # rank 0 prints the reason
    report_to_launcher("refused before work began" if is_refused else str(error))
    if isinstance(error, SAME_ON_ALL_RANKS) and world.rank != 0:
        error.is_printed = True
        stop.wait(LET_RANK_0_SPEAK_S)


def _raise_if_one_line_is_enough(error: OSError, world: World) -> None:
    """Raises DiskError for a full or broken disk, and the error itself where `main` prints it."""
    from runner.folder.files import DISK_ERRORS

    if error.errno in DISK_ERRORS:
        raise DiskError(error.errno, f"{error.filename}: {error.strerror}") from None
    if error.filename and world.world_size == 1:
        raise error


def _end_with_traceback(error: Exception) -> NoReturn:
    """End at once: a barrier or a clean-up could hang, and the launcher must see this exit."""
    report_to_launcher(f"{type(error).__name__}: {error}")
    words = f"{type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"
    say(words, every_rank=True, level=logging.ERROR)
    os._exit(int(ExitCode.ERROR))
