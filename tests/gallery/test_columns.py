"""Columns: the four forms, and what a browser reads back from them."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.gallery.columns import columns

VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(0, 2), st.text("ab"))


def read(column: dict[str, Any], rows: int) -> list[Any]:
    """As table.js reads a column."""
    if "all" in column:
        return [column["all"]] * rows
    if "from" in column:
        return [column["from"] + row * column["step"] for row in range(rows)]
    if "each" in column:
        return list(column["each"])
    return [column["of"][at] for at in column["at"]]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES), min_size=1, max_size=12))
def test_every_value_comes_back(rows: list[dict[str, Any]]) -> None:
    made = json.loads(json.dumps(columns(rows)))
    for name in made:
        wanted = [row.get(name) for row in rows]
        assert json.dumps(read(made[name], len(rows))) == json.dumps(wanted)


def test_each_form_where_it_is_the_shortest() -> None:
    rows = [
        {"model": "demo", "seed": 7 + 2 * i, "steps": 20 + i % 2, "prompt": f"cat {i}"}
        for i in range(6)
    ]
    made = columns(rows)
    assert made["model"] == {"all": "demo"}
    assert made["seed"] == {"from": 7, "step": 2}
    assert made["steps"] == {"of": [20, 21], "at": [0, 1, 0, 1, 0, 1]}
    assert made["prompt"] == {"each": [f"cat {i}" for i in range(6)]}


def test_numbers_that_a_browser_would_round_are_texts() -> None:
    made = columns([{"seed": 2**63 - 1}, {"seed": 2**53}])
    assert made["seed"] == {"each": [str(2**63 - 1), 2**53]}


def test_fifty_thousand_images_take_little_more_than_their_texts() -> None:
    rng = random.Random(1)
    prompts = [f"a picture of thing number {rng.random()}" for _ in range(50_000)]
    about = {"model": "demo", "device": "cuda", "width": 1024, "degraded": []}
    rows = (
        {"index": i, "prompt": prompt, "seed": 42 + i, "parameters": '{"steps":30}', **about}
        for i, prompt in enumerate(prompts)
    )
    assert len(json.dumps(columns(rows))) < len(json.dumps(prompts)) + 1000
