"""Manifest → tasks, fingerprints, batches."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli import main
from runner.errors import ManifestError
from runner.manifest.prompts import Prompt
from runner.manifest.schema import Manifest
from runner.manifest.sources.prompt_list import Inline
from runner.manifest.yaml_tree import Node
from runner.plan import Fingerprints, Plan, Task, canonical
from runner.units import counted

Make = Callable[..., Plan]
ROOT = Node({}, "job.yaml")


def test_indices_and_seeds_follow_the_manifest_alone(plan: Make) -> None:
    made = plan(
        "model: demo\nseed: 42\nparameters: {height: 64, width: 64}\nprompts:\n"
        "  - a\n"
        "  - {prompt: b, seed: 7, parameters: {num_images_per_prompt: 3, height: 32}}\n"
        "  - c\n"
    )
    tasks = list(made.tasks())
    assert [task.index for task in tasks] == [0, 1, 2, 3, 4]
    assert [task.prompt_index for task in tasks] == [0, 1, 1, 1, 2]
    assert [task.seed for task in tasks] == [42, 7, 8, 9, 46]
    assert tasks[1].parameters == {"height": 32, "width": 64}
    assert [made.task(i) for i in range(len(made))] == tasks
    with pytest.raises(AttributeError):
        tasks[0].seed = 1  # type: ignore[misc]


# Case 7.
def test_fixed_seed_and_own_seeds(plan: Make) -> None:
    fixed = plan("model: demo\nseed: {fixed: 5}\nprompts: [a, a, a]")
    assert [task.seed for task in fixed.tasks()] == [5, 5, 5]
    own = plan(
        "model: demo\nseed: 1\nprompts: [{prompt: a, seed: 5}, {prompt: a, seed: 5}, "
        "{prompt: a, seed: 6}]"
    )
    assert [task.seed for task in own.tasks()] == [5, 5, 6]


def test_null_reaches_the_call(plan: Make) -> None:
    """A pipeline's default may be another value, and null mean: without."""
    made = plan(
        "model: demo\nbatch_size: 4\n"
        "parameters: {negative_prompt: x, sigmas: null, num_images_per_prompt: 2}\nprompts:\n"
        "- a\n- {prompt: b, parameters: {negative_prompt: null, num_images_per_prompt: null}}"
    )
    first = {"negative_prompt": "x", "sigmas": None}
    last = {"negative_prompt": None, "sigmas": None}
    assert [dict(task.parameters) for task in made.tasks()] == [first, first, last]
    assert [made.batch(number) for number in range(made.batch_count)] == [(0, 1), (2,)]
    without = plan("model: demo\nprompts: [a, a, b]")
    marks = Fingerprints(made.manifest, {}), Fingerprints(without.manifest, {})
    assert marks[0].of(made.task(2)) != marks[1].of(without.task(2))


# Case 6: derived seeds stay in range, or the manifest is refused up front.
def test_derived_seeds_stay_in_range(plan: Make) -> None:
    top = 2**63 - 1
    assert plan(f"model: demo\nseed: {top}\nprompts: [a]").task(0).seed == top
    with pytest.raises(ManifestError, match=f"job.yaml:2: seed: {top}: .* smaller seed"):
        plan(f"model: demo\nseed: {top}\nprompts: [a, b, c]")
    with pytest.raises(ManifestError, match=r"job.yaml:3: prompts\[1\]: seed: "):
        plan(
            f"model: demo\nseed: 1\nprompts: [a, {{prompt: b, seed: {top}, "
            "parameters: {num_images_per_prompt: 2}}]"
        )
    assert len(plan(f"model: demo\nseed: {{fixed: {top}}}\nprompts: [a, b, c]")) == 3


def test_batches_are_formed_in_index_order_by_parameters(plan: Make) -> None:
    made = plan(
        "model: demo\nbatch_size: 2\nparameters: {height: 64}\nprompts:\n"
        "  - a\n"
        "  - {prompt: b, parameters: {height: 32}}\n"
        "  - {prompt: c, seed: 9}\n"
        "  - {prompt: d, parameters: {height: 32}}\n"
        "  - {prompt: e, parameters: {negative_prompt: x}}\n"
        "  - {prompt: f, parameters: {negative_prompt: y}}\n"
        "  - g\n"
    )
    assert [made.batch(i) for i in range(made.batch_count)] == [(0, 2), (1, 3), (4, 5), (6,)]


sizes = st.integers(1, 5)
heights = st.lists(st.sampled_from([32, 64, 96]), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(heights, sizes, st.integers(1, 3))
def test_batches_partition_the_plan(heights: list[int], size: int, images: int) -> None:
    prompts = Inline([Prompt("a", parameters={"height": h}) for h in heights], ROOT)
    values = {"model": "demo", "batch_size": size, "prompts": [{"prompt": "a"}]}
    manifest = Manifest.model_validate({**values, "parameters": {"num_images_per_prompt": images}})
    made = Plan(manifest, prompts, ROOT)
    batches = [made.batch(i) for i in range(made.batch_count)]
    assert sorted(index for batch in batches for index in batch) == list(range(len(made)))
    assert len(made) == images * len(heights)
    for batch in batches:
        assert len(batch) <= size
        assert list(batch) == sorted(batch)
        assert len({made.task(index).parameters["height"] for index in batch}) == 1


def fingerprint(plan: Plan, index: int = 0, **model: str) -> str:
    return Fingerprints(plan.manifest, model or {"files": "x"}).of(plan.task(index))


def test_a_fingerprint_is_what_makes_the_pixels(plan: Make) -> None:
    base = "seed: 1\nparameters: {height: 64, guidance_scale: 4.0}\nprompts: [a, b]"
    first = fingerprint(plan("model: demo\n" + base))
    assert len(first) == 32
    same = (
        "batch_size: 2\n", "max_failures: 3\n", "output: elsewhere\n", "stop_grace_s: 1\n",
        "strategy: data_parallel\n",
    )  # fmt: skip
    for text in same:
        assert fingerprint(plan("model: demo\n" + text + base)) == first
    assert fingerprint(plan("model: demo\n" + base.replace("4.0", "4"))) == first
    other = [
        plan("model: demo\n" + base.replace(old, new))
        for old, new in (("64", "32"), ("seed: 1", "seed: 2"), ("[a", "[c"), ("4.0", "4.1"))
    ]
    other.append(plan("model: demo\ndtype: bfloat16\n" + base))
    prints = {fingerprint(made) for made in other}
    assert len(prints) == len(other)
    assert first not in prints
    assert fingerprint(plan("model: demo\n" + base), files="y") != first


# Invariant 7: editing one prompt remakes one image.
def test_editing_one_prompt_changes_one_fingerprint(plan: Make) -> None:
    before = plan("model: demo\nseed: 1\nprompts: [a, b, c, d]")
    after = plan("model: demo\nseed: 1\nprompts: [a, b, x, d]")
    changed = [i for i in range(4) if fingerprint(before, i) != fingerprint(after, i)]
    assert changed == [2]


def test_the_form_of_the_fingerprint_does_not_drift(plan: Make) -> None:
    """A new form would make every finished image of every user look changed."""
    task = Task(0, 0, "a café 🦊", 7, {"height": 64, "true_cfg_scale": 2.5})
    made = Fingerprints(plan("model: demo\nprompts: [a]").manifest, {"id": "x", "revision": "y"})
    fixed = "08b556c99e5be77c67792aa4126db6ae"
    assert made.of(task) == fixed
    assert made.of(replace(task, index=5, prompt_index=3)) == fixed


def test_canonical_json() -> None:
    assert canonical({"b": 4.0, "a": [1, 2.5, True, None]}) == '{"a":[1,2.5,true,null],"b":4}'


@pytest.mark.parametrize(
    ("images", "output", "is_advised"),
    [(10_000, {}, False), (10_001, {}, True), (10_001, {"images_per_folder": 1000}, False)],
)
def test_many_images_in_one_folder_are_advised_against(
    manifest: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    images: int,
    output: dict[str, int],
    is_advised: bool,
) -> None:
    many = {"prompt": "a cat", "parameters": {"num_images_per_prompt": images}}
    path = manifest(model="demo", output=output, prompts=[many])
    assert main(["plan", str(path), "--output", str(tmp_path / "out")]) == 0
    assert ("images_per_folder: 1000" in capsys.readouterr().out) == is_advised


def test_texts_of_several_prompts_come_again(plan: Make, tmp_path: Path) -> None:
    prompts = [
        {"prompt": "a cat", "parameters": {"num_images_per_prompt": 2}},
        {"prompt": "a dog", "seed": 7},
        {"prompt": "a fox", "parameters": {"negative_prompt": "snow"}},
        {"prompt": "a dog", "parameters": {"height": 32}},
        {"prompt": "a hen", "parameters": {"negative_prompt": "snow", "prompt_2": "hen"}},
        "a cow",
    ]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    default = {"negative_prompt": "rain"}  # of all, and so never out of use
    for form in (prompts, {"file": "list.jsonl"}):
        made = plan(model="demo", parameters=default, prompts=form)
        again = [made.comes_again(task) for task in made.tasks()]
        assert again == [False, False, True, True, True, True, False]


def test_the_default_size_is_checked_whoever_uses_it_first(plan: Callable[..., Plan]) -> None:
    own = {"prompt": "a star", "parameters": {"height": 96, "width": 160}}
    some = plan(model="demo", parameters={"height": 130, "width": 128}, prompts=[own, "a heart"])
    assert some.sizes == {(96, 160): 0, (130, 128): 1}


def test_one_of_a_thing_is_in_the_singular(
    manifest: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(manifest(model="demo", seed=1, prompts=["a red circle"]))
    out = ["--output", str(tmp_path / "out")]
    for words in (["validate", path], ["plan", path, *out], ["status", path, "--exit-code", *out]):
        main(words)
        printed = capsys.readouterr().out
        assert re.search(r"\b1 (image|prompt|batch|replica)\b", printed), printed
        assert not re.search(r"\b1 (images|prompts|batches|replicas|ranks|processes)\b", printed)
    assert counted(1, "process") == "1 process"
    assert counted(0, "batch") == "0 batches"
