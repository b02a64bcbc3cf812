"""Several images of a prompt: variations, seeds, sweeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.errors import ManifestError
from runner.manifest.load import load
from runner.plan import Plan

Make = Callable[..., Plan]


def seeds(plan: Plan) -> list[int]:
    found = [task.seed for task in plan.tasks()]
    assert [plan.task(index).seed for index in range(len(plan))] == found
    return found


def test_variations_are_images_of_one_prompt(plan: Make) -> None:
    made = plan(
        model="demo", seed=10, variations=2, prompts=["a", {"prompt": "b", "variations": 3}]
    )
    assert [(task.prompt, task.variation) for task in made.tasks()] == [
        *[("a", 0), ("a", 1)],
        *[("b", 0), ("b", 1), ("b", 2)],
    ]
    assert seeds(made) == [10, 11, 12, 13, 14]
    assert "num_images_per_prompt" not in made.task(0).parameters


def test_every_prompt_has_each_seed_unless_it_has_its_own(plan: Make) -> None:
    more = [{"prompt": "b", "seeds": [7, 9]}, {"prompt": "c", "seed": 5}]
    last = {"prompt": "d", "variations": 2}
    made = plan(model="demo", seed={"fixed": 1}, seeds=[3, 1, 2], prompts=["a", *more, last])
    assert seeds(made) == [3, 1, 2, 7, 9, 5, 1, 1]


def test_seeds_and_variations_in_a_file(plan: Make, tmp_path: Path) -> None:
    lines = '"a"\n{"prompt": "b", "seeds": [4, 2]}\n{"prompt": "c", "variations": 2, "seed": 7}\n'
    (tmp_path / "list.jsonl").write_text(lines)
    made = plan(model="demo", seed=10, prompts={"file": "list.jsonl"})
    assert seeds(made) == [10, 4, 2, 7, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: [1]\nvariations: 2", "3: variations: 2: excludes seeds; keep one of them"),
        ("seeds: [1, 1]", "2: seeds: 1 is there twice, which makes one picture twice; keep one"),
        ("seeds: []", "2: seeds: must not be empty"),
        ("seeds: 3", "2: seeds: 3: must be a list"),
        ("variations: 0", "2: variations: 0: must be 1 or more"),
        ("parameters: {num_images_per_prompt: 2}\nvariations: 2", "excludes parameters.num_images"),
        ("parameters: {num_images_per_prompt: 2}\nseeds: [1]", "seeds: excludes parameters.num_"),
        ("seed: {per: image}", "2: seed.per: image: must be 'prompt'"),
        ("seed: {per: prompt, fixed: 3}", "give a number, {fixed: number} or {per: prompt}"),
        ("sweep: {zip: {a: [1, 2], b: [1]}}", "must be of one length: a has 2, b has 1"),
        ("sweep: {product: {a: [1]}, zip: {a: [1]}}", "a is an axis of product, too; keep one"),
        ("sweep: {product: {a: [x, x]}}", 'sweep.product: a: "x" is there twice; keep one'),
        ("sweep: {product: {a: []}}", "sweep.product.a: must not be empty"),
        ("sweep: {product: {prompt: [a]}}", "prompt is set by the runner; write prompts instead"),
        ("sweep: {product: {variations: [1]}}", "no axis of a sweep; set variations"),
        ("sweep: {product: {height: [0]}}", "height must be a whole number, 1 or more, not 0"),
        ("sweep: {product: {seed: [-1]}}", "seed must be a whole number from 0"),
        ("seeds: [1]\nsweep: {product: {seed: [1]}}", "seed is an axis, and there are seeds"),
        ("sweep: {product: {}}", "sweep: has no axis; write one under product or zip"),
        ("sweep: {product: {'': [1]}}", "an axis has no name"),
        ("sweep: {product: {id: [1]}}", "id is no axis of a sweep; give the word another name"),
        (
            f"sweep: {{product: {{a: {[*range(400)]}}}, zip: {{b: {[*range(400)]}}}}}",
            "sweep.zip: 160000 combinations; 100000 are the most",
        ),
        ("sweep: {products: {}}", "sweep.products: unknown key; did you mean product?"),
    ],
)
def test_what_makes_no_sense_is_refused(manifest: Callable[..., Path], text: str, message: str):
    with pytest.raises(ManifestError) as caught:
        load(manifest(f"model: demo\n{text}\nprompts: [a]"))
    assert message in str(caught.value)


def by_text(plan: Plan) -> dict[tuple[str, int], int]:
    return {(task.prompt, task.variation): task.seed for task in plan.tasks()}


def test_a_seed_per_prompt_survives_any_order(plan: Make) -> None:
    values: dict[str, Any] = {"model": "demo", "seed": {"per": "prompt"}, "variations": 2}
    before = by_text(plan(**values, prompts=["a", "b", "c"]))
    after = by_text(plan(**values, prompts=["d", "c", {"prompt": "x", "seed": 3}, "b"]))
    assert all(after[key] == before[key] for key in after if key[0] in "bc")
    assert after["x", 1] == 4
    assert after["b", 1] == after["b", 0] + 1
    started = by_text(plan(**{**values, "seed": {"per": "prompt", "start": 5}}, prompts=["b"]))
    assert started["b", 0] == before["b", 0] + 5


def test_equal_prompts_get_different_seeds(plan: Make) -> None:
    """Also where others stand between them; with other parameters the picture differs anyway."""
    wide = {"prompt": "a", "parameters": {"width": 512}}
    made = plan(model="demo", seed={"per": "prompt"}, prompts=["a", wide, "a", "b", "a"])
    found = seeds(made)
    assert found[0] == found[1]
    assert len({found[0], found[2], found[3], found[4]}) == 4
    again = seeds(plan(model="demo", seed={"per": "prompt"}, prompts=["a", "a"]))
    assert set(again) == {found[0], found[2]}


SWEEP = {
    "product": {"guidance_scale": [1.0, 2.0, 3.0], "animal": ["cat", "dog", "fox", "owl"]},
    "zip": {"height": [64, 128], "width": [32, 64]},
}


def test_a_sweep_makes_every_prompt_at_every_point(plan: Make) -> None:
    made = plan(model="demo", seed=0, sweep=SWEEP, prompts=["a {animal} {here}", "the {animal}"])
    tasks = list(made.tasks())
    assert len(tasks) == len(made) == 2 * 3 * 4 * 2
    assert [made.task(index) for index in range(len(made))] == tasks
    assert [task.prompt for task in tasks[:4]] == ["a cat {here}"] * 2 + ["a dog {here}"] * 2
    assert tasks[0].sweep == {"guidance_scale": 1, "animal": "cat", "height": 64, "width": 32}
    assert tasks[0].parameters == {"guidance_scale": 1.0, "height": 64, "width": 32}
    assert {task.parameters["guidance_scale"] for task in tasks} == {1.0, 2.0, 3.0}
    pairs = {(task.parameters["height"], task.parameters["width"]) for task in tasks}
    assert pairs == {(64, 32), (128, 64)} == set(made.sizes)
    assert tasks[-1].prompt == "the owl"
    assert len({(task.prompt, str(task.parameters)) for task in tasks}) == len(tasks)


def test_a_sweep_of_seeds_and_variations(plan: Make) -> None:
    sweep = {"product": {"seed": [10, 20], "true_cfg_scale": [1.0, 2.0]}}
    made = plan(model="demo", variations=2, sweep=sweep, prompts=["a"])
    assert seeds(made) == [10, 11, 10, 11, 20, 21, 20, 21]
    # All points of a prompt share what is derived from it, so that they can be compared.
    per = plan(
        model="demo", seed={"per": "prompt"}, sweep={"zip": {"x": ["b", "c"]}}, prompts=["a {x}"]
    )
    assert len(set(seeds(per))) == 1


def test_a_sweep_fills_words_in_all_texts(plan: Make) -> None:
    own = {"prompt": "a {x}", "parameters": {"negative_prompt": "fog, {x}"}}
    sweep, parameters = {"product": {"x": ["cat", "dog"]}}, {"negative_prompt": "no {x}"}
    made = plan(model="demo", sweep=sweep, parameters=parameters, prompts=["the {x}", own])
    found = [task.parameters["negative_prompt"] for task in made.tasks()]
    assert found == ["no cat", "no dog", "fog, cat", "fog, dog"]


def test_a_sweep_forms_batches_by_point(plan: Make) -> None:
    sweep = {"product": {"guidance_scale": [1.0, 2.0]}}
    made = plan(model="demo", batch_size=2, sweep=sweep, prompts=["a", "b", "c"])
    assert [made.batch(n) for n in range(made.batch_count)] == [(0, 2), (1, 3), (4,), (5,)]


@pytest.mark.parametrize(
    ("sweep", "prompts", "message"),
    [
        ("product: {x: [b]}", "['{x}', c]", "4: prompts[1]: has no {x}, which the sweep fills"),
        ("product: {x: [[b]]}", "['{x}']", '3: sweep: x stands in prompts as {x}, so ["b"] must'),
        (
            "product: {height: [64]}",
            "[{prompt: a, parameters: {height: 32}}]",
            "4: prompts[0]: height: the sweep sets it for all prompts; remove it here",
        ),
        ("product: {seed: [1]}", "[{prompt: a, seed: 3}]", "prompts[0]: seed: the sweep sets it"),
        (
            "product: {seed: [7, 9]}",
            "[a, {prompt: b, variations: 3}]",
            "4: prompts[1]: 3 images from each seed of the sweep, and two of these are",
        ),
        ("product: {x: [1.0, 1]}", "[a]", '3: sweep: {"x": 1} makes the same images twice; keep'),
        ("product: {x: [1, '1']}", "['{x}']", '3: sweep: {"x": "1"} makes the same images twice'),
        ("zip: {x: [1, 1], y: [2, 2]}", "[a]", '{"x": 1, "y": 2} makes the same images twice'),
        ("product: {x: [a, '']}", "['b {x}', '{x}']", "prompts[1]: is blank with a value of the"),
    ],
)
def test_a_prompt_that_does_not_fit_the_sweep(
    plan: Make, sweep: str, prompts: str, message: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        plan(f"model: demo\nseed: 1\nsweep: {{{sweep}}}\nprompts: {prompts}")
    assert message in str(caught.value)
