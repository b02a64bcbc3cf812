"""The `status --watch` command: a live view of a job, from its folder alone."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from runner.commands.status import status
from runner.launch.layout import Part
from runner.manifest.load import Loaded
from runner.say import printable
from runner.units import counted, gib

__all__ = ["frame", "watch"]

REFRESH_S, WAIT_S = 2.0, 10.0  # while a job works, and while none does
STYLES = {"silent": "bold red", "lost": "bold red", "busy": "green", "loading": "yellow"}
COLUMNS = ("replica", "host", "state", "images", "failed", "images/s", "seen", "device", "memory")


def watch(loaded: Loaded, output: Path, part: Part | None) -> None:
    """Show the job until it ends, or Ctrl-C comes. Where none works yet, wait for one, except where
    nothing is left to do."""
    was_running = False
    with Live(auto_refresh=False) as view:
        while True:
            values = status(loaded, output, None, part)
            view.update(frame(values), refresh=True)
            is_running = values["outcome"] == "running"
            if not is_running and (was_running or values["outcome"] == "complete"):
                return
            was_running = is_running
            time.sleep(REFRESH_S if is_running else WAIT_S)


def frame(values: Mapping[str, Any]) -> Group:
    """What is on the screen at a moment: the status in a line, a bar, and a row per replica."""
    bar = ProgressBar(total=values["images"] or 1, completed=values.get("done", 0))
    parts: list[Any] = [_text(values["sentence"]), bar]
    rate = values.get("current_images_per_second")
    if rate:
        parts.append(_text(f"{rate:.3g} images/s"))
    if rows := values.get("replicas"):
        parts.append(_table(rows))
    if spent := values.get("accounting"):
        hours = f"{spent['process_hours']:.2f} process-hours, {spent['gpu_hours']:.2f} GPU-hours"
        made = f"{counted(spent['images'], 'image')}, {spent['failed']} failed"
        parts.append(_text(f"{counted(spent['launches'], 'launch')} in all: {hours}; {made}"))
    return Group(*parts)


def _table(rows: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("host", "state", "device") else "right")
    for row in rows:
        rate, seen_s = row.get("images_per_second"), row.get("last_sign_s")
        state, devices = str(row.get("state")), row.get("devices") or 0
        cells = (
            f"{row.get('shard', '')} {row['replica']}".strip(),
            row.get("host"),
            state,
            row.get("images"),
            row.get("failed"),
            "" if rate is None else f"{rate:.3g}",
            "" if seen_s is None else f"{seen_s:.0f} s ago",
            f"{devices} × {row.get('device')}" if devices > 1 else row.get("device"),
            gib(row.get("memory_peak") or 0),
        )
        table.add_row(*(_text(str(cell)) for cell in cells), style=STYLES.get(state))
    return table


def _text(words: str) -> Text:
    """Plain: what looks like markup stays text, and nothing controls the terminal."""
    return Text(printable(words).replace("\n", " "))
