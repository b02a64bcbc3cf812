"""The `stop` command: ask the jobs that work on an output folder to stop."""

from pathlib import Path

from runner.folder.owners import live_parts
from runner.folder.paths import OutputFolder
from runner.manifest.load import Loaded
from runner.say import answer
from runner.units import counted

__all__ = ["stop"]

TOO_EARLY = "a job that has just started shows up after some seconds, so try again then"


def stop(loaded: Loaded, output: Path) -> None:
    """Make the stop file of each living job, and print how many there are."""
    folder = OutputFolder(output, loaded.manifest.output)
    jobs = live_parts(folder)
    for part in jobs:
        folder.ask_to_stop(part)
    asked = f"asked {counted(len(jobs), 'job')} to stop"
    answer(asked if jobs else f"no job works on {folder.dir}; {TOO_EARLY}")
