"""The `stop` command: ask the jobs that work on an output folder to stop."""

import time
from pathlib import Path

from runner.folder.owners import live_parts
from runner.folder.paths import OutputFolder
from runner.manifest.load import Loaded
from runner.say import answer, say
from runner.units import counted

__all__ = ["stop"]

STARTING_S = 10.0  # until a job that has just been started shows up in its folder
POLL_S = 0.5


def stop(loaded: Loaded, output: Path) -> None:
    """Make the stop file of each living job, and print how many there are. Where there is none, one
    that has just been started gets some seconds to show up."""
    folder = OutputFolder(output, loaded.manifest.output)
    end = time.monotonic() + STARTING_S
    jobs = live_parts(folder)
    if not jobs:
        say(f"no job works on {folder.dir}; waiting {STARTING_S:g} s for one that has just started")
    while not jobs and time.monotonic() < end:
        time.sleep(POLL_S)
        jobs = live_parts(folder)
    for part in jobs:
        folder.ask_to_stop(part)
    asked = f"asked {counted(len(jobs), 'job')} to stop"
    answer(asked if jobs else f"no job works on {folder.dir}")
