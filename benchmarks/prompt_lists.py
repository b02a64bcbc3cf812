"""What `plan` costs for a list of prompts in each format, compared with the same list as .jsonl.

    python benchmarks/prompt_lists.py [--rows 1000000] [--json FILE]

Two lists: texts alone, and texts with an id and a column of the author's own. Each format is
planned in a process of its own; a second row of .jsonl and of Parquet has twice as many prompts, to
show what memory grows by. Then the list with ids, as .jsonl, with names by a template, without and
with folders, and with seeds per prompt. Needs pyarrow.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arguments
import scale

FORMS = ("jsonl", "csv", "parquet")
MORE: dict[str, dict[str, Any]] = {
    "name": {"output": {"name": "{id}_{variation:02}"}},
    "folders": {"output": {"name": "{id}/samples/{variation:04}"}},
    "seeds": {"seed": {"per": "prompt", "start": 1}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=arguments.whole(10, 10**7), default=10**6)
    parser.add_argument("--json", type=arguments.new_file)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        form, kind, number, path = options.child
        WRITERS[form](Path(path), values(kind, int(number)))
        return
    rows = []
    print(f"{'list':<8}{'format':<9}{'rows':>9}{'CPU s':>8}{'ratio':>7}{'MB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("texts", "ids", *MORE):
            sizes = [(form, options.rows) for form in (FORMS if kind not in MORE else FORMS[:1])]
            if kind not in MORE:
                sizes += [(form, 2 * options.rows) for form in ("jsonl", "parquet")]
            for form, count in sizes:
                row = measure(Path(folder), kind, form, count)
                of = "texts" if kind == "texts" else "ids"
                base = next((r for r in rows if (r["list"], r["format"]) == (of, "jsonl")), row)
                row["ratio"] = row["cpu_s"] / base["cpu_s"]
                print(
                    f"{kind:<8}{form:<9}{count:>9}{row['cpu_s']:>8.2f}{row['ratio']:>7.2f}"
                    f"{row['mb']:>6.0f}",
                    flush=True,
                )
                rows.append(row)
    arguments.write_json(options.json, rows)


def measure(folder: Path, kind: str, form: str, count: int) -> dict[str, Any]:
    path = folder / f"list.{form}"
    # In a process of its own: on Linux a child has its parent's peak memory.
    write = [sys.executable, __file__, "--child", form, kind, str(count), str(path)]
    subprocess.run(write, check=True)
    job = folder / "job.yaml"
    more = MORE.get(kind, {})
    values = {"model": "demo", "seed": 1, "prompts": {"file": path.name}, **more}
    job.write_text(json.dumps(values))
    used = scale.timed(scale.runner("plan", job))
    path.unlink()
    return {"list": kind, "format": form, "rows": count, **used}


def values(kind: str, count: int) -> Iterator[dict[str, str]]:
    for number in range(count):
        own = {"id": f"k{number}", "tag": "cats"} if kind != "texts" else {}
        yield {**own, "prompt": f"a red cat, number {number}"}


def write_jsonl(path: Path, rows: Iterator[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_csv(path: Path, rows: Iterator[dict[str, str]]) -> None:
    first = next(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        writer.writerow(first)
        writer.writerows(rows)


def write_parquet(path: Path, rows: Iterator[dict[str, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([*rows]), path)


WRITERS = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}


if __name__ == "__main__":
    main()
