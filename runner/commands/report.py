"""The `report` command: report.html of a folder, whether a job works on it or not."""

import secrets
from pathlib import Path

from runner.commands.status import status
from runner.errors import FolderError
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.gallery.page import Shown, write_page
from runner.manifest.load import Loaded
from runner.prepare.look import look

__all__ = ["report"]


@os_errors_as_refusals()
def report(loaded: Loaded, output: Path) -> Path:
    """Write the page and return its path.

    Raises FolderError where there is nothing to show, or where `status` would.
    """
    summary = status(loaded, output, None, None)
    folder = OutputFolder(output, loaded.manifest.output)
    seen = look(loaded, folder)
    if seen.recorded is None:
        raise FolderError(f"{summary['sentence']}; run the job first")
    name, states = loaded.path.stem, seen.states()
    shown = Shown(folder, name, seen.plan, seen.record, states, summary)
    write_page(shown, secrets.token_hex(4))
    return folder.report
