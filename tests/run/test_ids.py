"""An author's own names and data of prompts, from the manifest to every report."""

import json
from typing import Any

import pytest
from support.bench import Bench
from support.launch import lines

from runner.errors import ExitCode
from runner.folder.png import read_text


def test_id_and_meta_go_along(
    bench: Bench, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = {"tag": "counting", "include": [{"class": "fox", "count": 2}]}
    bench.values["prompts"] = [
        {"prompt": "a red fox", "id": 17, "meta": meta},
        {"prompt": "no", "id": "b/2", "meta": {"tag": "no"}},
        "a cat",
    ]
    bench.values["parameters"]["num_images_per_prompt"] = 2
    failing({"no": ValueError("no")})
    planned = [(task.get("id"), task["variation"]) for task in bench.plan()["tasks"]]
    assert planned == [("17", 0), ("17", 1), ("b/2", 0), ("b/2", 1), (None, 0), (None, 1)]
    assert bench.run() is ExitCode.FAILED
    made = {line["index"]: line for line in lines(bench.output / "metadata.jsonl")}
    assert [made[i]["variation"] for i in (0, 1, 4, 5)] == [0, 1, 0, 1]
    assert (made[1]["id"], made[1]["meta"]) == ("17", meta)
    assert made[4].keys().isdisjoint({"id", "meta"})
    failed = lines(bench.output / "failures.jsonl")[0]
    assert (failed["id"], failed["meta"]) == ("b/2", {"tag": "no"})
    text = read_text(bench.output / "000001.png") or {}
    assert (text["id"], json.loads(text["meta"])) == ("17", meta)
