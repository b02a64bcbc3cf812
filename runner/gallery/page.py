"""report.html: one page that shows a job, from its folder alone and without a network."""

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.folder import files
from runner.folder.merged_record import MergedRecord
from runner.folder.paths import OutputFolder
from runner.gallery.columns import columns, page_rows
from runner.gallery.thumbnails import SIDE, make_thumbnails
from runner.manifest.schema import Manifest
from runner.plan import Plan
from runner.units import counted, duration

__all__ = ["Shown", "write_page"]

TEMPLATE = Path(__file__).with_name("template")
SCRIPTS = ("table.js", "images.js", "grid.js", "run.js", "main.js")  # one script, in this order
MOST_ROWS = 100_000  # images that a page shows; a browser still searches them at once
# Of a manifest: what says nothing about the pixels of one image, or that a copied entry has itself.
NOT_COPIED = {"prompts", "parameters", "seed", "seeds", "variations", "sweep", "output", "strategy"}
NOT_COPIED |= {"batch_size", "batch_sizes", "max_failures", "stop_grace_s", "on_flagged", "report"}
NOT_COPIED |= {"versions", "scheduler"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows."""

    folder: OutputFolder
    name: str  # of the job
    plan: Plan
    record: MergedRecord
    states: bytearray
    summary: Mapping[str, Any]  # as in summary.json


def write_page(
    shown: Shown,
    launch: str,
    check: Callable[[], None] = files.no_check,
    *,
    is_hurried: bool = False,
) -> None:
    """Write the page, and first the thumbnails that are missing, except where it must be quick.
    `check` is called before the page gets its name. Raises DiskError."""
    rows = list(page_rows(shown.folder, shown.plan, shown.record, shown.states))
    if not is_hurried:
        make_thumbnails(shown.folder, rows)
    summary = shown.summary
    data = {
        "columns": columns(rows[:MOST_ROWS]),
        "rows": min(len(rows), MOST_ROWS),
        "manifest": _copied(shown.plan.manifest),
        "side": SIDE,
        "replicas": summary["replicas"],
        "timeline": summary.get("timeline"),
        "seconds": summary["seconds"],
    }
    page = _render(name=shown.name, summary=summary, data=data, shown=data["rows"], all=len(rows))
    files.replace(shown.folder.report, (page.encode(),), launch, check)


def _copied(manifest: Manifest) -> dict[str, Any]:
    """What a manifest needs besides its one prompt to make an image of this job again."""
    return manifest.model_dump(mode="json", exclude=NOT_COPIED, exclude_defaults=True)


def _render(**values: Any) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters |= {"counted": counted, "duration": duration}
    style, template = map(_text, ("style.css", "page.html.j2"))
    script = '"use strict";\n' + "\n".join(map(_text, SCRIPTS))
    # The browser runs this one script, whatever else should get into the page.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(template).render(
        style=Markup(style), script=Markup(script), digest=digest, written=time.time(), **values
    )


def _text(name: str) -> str:
    return (TEMPLATE / name).read_text(encoding="utf-8")
