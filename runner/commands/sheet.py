"""The `sheet` command: a contact sheet of an output folder."""

from pathlib import Path

from runner.errors import FolderError
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.gallery.columns import page_rows
from runner.gallery.sheet import write_sheet
from runner.manifest.load import Loaded
from runner.prepare.look import look

__all__ = ["sheet"]


@os_errors_as_refusals()
def sheet(
    loaded: Loaded, output: Path, file: Path | None, columns: int | None, size: int | None
) -> Path:
    """Write the sheet and return its path.

    Raises FolderError where nothing is to show, and LaunchError as `write_sheet` does.
    """
    path = file or Path(f"{loaded.path.stem}-sheet.png")
    folder = OutputFolder(output, loaded.manifest.output)
    folder.check()
    seen = look(loaded, folder)
    states = seen.states() if seen.recorded else bytearray()
    if not any(states):
        raise FolderError(f"{folder.dir}: has no images of this job; run it first")
    rows = page_rows(folder, seen.plan, seen.record, states)
    write_sheet(folder, rows, path, columns, size)
    return path
