"""Replicas of several ranks: the images of one process, and what happens when a rank fails."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import tiny
from support.launch import launch
from support.replicas import EVEN, EVEN_NEGATIVE, NEGATIVE, PROMPTS, floats, render, write

from runner import demo

CLASSES = {"flux": "FluxTransformer2DModel", "qwen": "QwenImageTransformer2DModel"}
ULYSSES = "{kind: context_parallel, ulysses_degree: 2}"


@pytest.fixture(scope="module")
def one_process(ranks, models, tmp_path_factory):
    """The float images of one process, by model."""
    found = {}
    for name in CLASSES:
        path = write(tmp_path_factory.mktemp(name), models / name, "data_parallel")
        ended = render(ranks, 1, path, "support.patches:keep_floats")
        assert ended.codes == [0], ended.words
        found[name] = floats(path.parent)
    return found


DEMO = (
    (2, ULYSSES),
    (4, "{kind: context_parallel, ring_degree: 2, ulysses_degree: 2}"),
    (2, "{kind: tensor_parallel, degree: 2}"),
    (4, "{kind: tensor_parallel, degree: 4}"),
)
VARIANTS = {
    "ulysses": [
        (2, ULYSSES),
        (4, "{kind: context_parallel, ulysses_degree: 4}"),
        (4, ULYSSES),  # two replicas
        (2, "{kind: context_parallel, ulysses_degree: 2, ulysses_anything: true}"),
    ],
    "ring": [
        (2, "{kind: context_parallel, ring_degree: 2}"),
        (2, "{kind: context_parallel, ring_degree: 2, ring_anything: true}"),
    ],
    "unified": [(4, "{kind: context_parallel, ring_degree: 2, ulysses_degree: 2}")],
    "tensor": [
        (2, "{kind: tensor_parallel, degree: 2}"),
        (4, "{kind: tensor_parallel, degree: 4}"),
        (4, "{kind: tensor_parallel, degree: 2}"),  # two replicas
    ],
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", CLASSES, ids=CLASSES.get)
def test_images_equal_one_process(ranks, models, one_process, tmp_path, model, variant):
    expected, texts = one_process[model], (PROMPTS, NEGATIVE)
    if variant == "unified":
        texts = (EVEN, EVEN_NEGATIVE)
        path = write(tmp_path / "one", models / model, "data_parallel", "", *texts)
        assert render(ranks, 1, path, "support.patches:keep_floats").codes == [0]
        expected = floats(path.parent)
    for number, (world_size, strategy) in enumerate(VARIANTS[variant]):
        path = write(tmp_path / str(number), models / model, strategy, "", *texts)
        ended = render(ranks, world_size, path, "support.patches:keep_floats")
        assert ended.codes == [0] * world_size, ended.words
        told = filter(None, ended.words.splitlines())
        foreign = [line for line in told if not line.startswith("runner: ")]
        assert not foreign  # advice of libraries, which a user cannot follow
        difference = max(
            np.abs(one - other).max()
            for one, other in zip(expected, floats(path.parent), strict=True)
        )
        print(f"{model} {strategy} on {world_size}: {difference:.1e}")
        assert difference <= 1e-5


def test_a_batch_of_equal_texts_equals_one_process(ranks, models, tmp_path):
    batches, prompts = "batch_size: 2\n", ("a red fox",) * 3
    path = write(tmp_path / "one", models / "qwen", "data_parallel", batches, prompts)
    assert render(ranks, 1, path, "support.patches:keep_floats").codes == [0]
    for world_size, degree in ((2, "ring_degree: 2"), (4, "ulysses_degree: 4")):
        strategy = f"{{kind: context_parallel, {degree}}}"
        job = write(tmp_path / degree[:4], models / "qwen", strategy, batches, prompts)
        ended = render(ranks, world_size, job, "support.patches:keep_floats")
        assert ended.codes == [0] * world_size, ended.words
        for one, other in zip(floats(path.parent), floats(job.parent), strict=True):
            assert np.abs(one - other).max() <= 1e-5


def test_a_folder_begun_with_one_strategy_is_finished_with_another(ranks, models, tmp_path):
    path = write(tmp_path / "job", models / "flux", "data_parallel")
    assert render(ranks, 2, path, limit=2).codes == [0, 0]
    out = tmp_path / "job" / "out"
    before = {found.name: found.stat().st_mtime_ns for found in out.glob("*.png")}
    assert len(before) == 2
    write(path.parent, models / "flux", ULYSSES)
    ended = render(ranks, 4, path)
    assert ended.codes == [0] * 4, ended.words
    after = {found.name: found.stat().st_mtime_ns for found in out.glob("*.png")}
    assert len(after) == 3
    assert before.items() <= after.items()
    lines = [json.loads(line) for line in (out / "metadata.jsonl").read_text().splitlines()]
    assert [line["strategy"] for line in lines] == ["data_parallel"] * 2 + ["context_parallel"]


@pytest.mark.parametrize("case", ["three heads", "odd size", "unequal texts in a batch"])
def test_what_does_not_divide_gives_equal_images_too(ranks, models, tmp_path, case):
    """Nothing is said in the manifest: the runner takes the "anything" variant by itself."""
    model, more, height = models / "flux", "", 64
    if case == "three heads":
        model = tiny.flux(tmp_path / "model", heads=3)
    elif case == "odd size":
        height = 48  # 9 tokens
    else:
        model, more = models / "qwen", "batch_size: 3\n"
    for name, world_size, strategy in (("one", 1, "data_parallel"), ("two", 2, ULYSSES)):
        path = write(tmp_path / name, model, strategy, more)
        sizes = f"height: {height}, width: {height}"
        path.write_text(path.read_text().replace("height: 64, width: 64", sizes))
        ended = render(ranks, world_size, path, "support.patches:keep_floats")
        assert ended.codes == [0] * world_size, ended.words
    pairs = list(zip(floats(tmp_path / "one"), floats(tmp_path / "two"), strict=True))
    difference = max(np.abs(one - other).max() for one, other in pairs)
    print(f"{case}: {difference:.1e}")
    assert difference <= 1e-5
    resolved = (tmp_path / "two" / "out" / "manifest.yaml").read_text()
    assert "ulysses_anything: true" in resolved


@pytest.mark.skipif(not (demo.MODEL_DIR / "model_index.json").is_file(), reason="not trained yet")
@pytest.mark.slow
def test_the_bundled_model_gives_equal_images_too(ranks, tmp_path):
    strategies = ("data_parallel", *(text for _, text in DEMO))
    found = []
    for number, strategy in enumerate(strategies):
        path = tmp_path / str(number) / "job.yaml"
        path.parent.mkdir()
        path.write_text(
            f"model: demo\nseed: 3\nstrategy: {strategy}\noutput: {path.parent / 'out'}\n"
            "parameters: {num_inference_steps: 2}\nprompts: [the moon over the sea]\n"
        )
        world_size = ([1] + [size for size, _ in DEMO])[number]
        ended = render(ranks, world_size, path, "support.patches:keep_floats")
        assert ended.codes == [0] * world_size, ended.words
        found += floats(path.parent)
    for strategy, image in zip(strategies, found, strict=True):
        print(f"demo {strategy}: {np.abs(image - found[0]).max():.1e}")
        assert np.abs(image - found[0]).max() <= 1e-5


@pytest.mark.slow
def test_torchrun_starts_a_replica(models, tmp_path):
    path = write(tmp_path / "job", models / "flux", ULYSSES, prompts=PROMPTS[:1])
    ended = launch([path], nproc=2)
    assert ended.returncode == 0, ended.stderr
    assert images(path) == [0]


# --- failures ---------------------------------------------------------------------------------

SIX = ("a red fox", "the moon", "bad", "a dog", "the sea", "a house")


def failures(path: Path) -> list[int]:
    file = path.parent / "out" / "failures.jsonl"
    return [json.loads(line)["index"] for line in file.read_text().splitlines()]


def images(path: Path) -> list[int]:
    return sorted(int(found.stem) for found in (path.parent / "out").glob("*.png"))


@pytest.mark.parametrize("patch", ["fail_before", "fail_after"])
def test_a_failure_of_all_ranks_is_recorded_and_the_replica_goes_on(ranks, models, tmp_path, patch):
    path = write(tmp_path / "job", models / "flux", ULYSSES, prompts=SIX)
    ended = render(ranks, 2, path, f"support.patches:{patch}")
    assert ended.codes == [3, 0], ended.words
    assert failures(path) == [2]
    assert images(path) == [0, 1, 3, 4, 5]


def test_a_batch_that_fails_on_all_ranks_is_split_by_all(ranks, models, tmp_path):
    path = write(tmp_path / "job", models / "flux", ULYSSES, "batch_size: 3\n", SIX)
    ended = render(ranks, 2, path, "support.patches:fail_before")
    assert ended.codes == [3, 0], ended.words
    assert failures(path) == [2]
    assert images(path) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("patch", "strategy"),
    [
        ("fail_inside_on_last_rank", ULYSSES),
        ("fail_inside_on_first_rank", "{kind: tensor_parallel, degree: 2}"),
    ],
)
@pytest.mark.slow
def test_a_failure_of_one_rank_inside_the_call_ends_the_job(
    ranks, models, tmp_path, patch, strategy
):
    path = write(tmp_path / "job", models / "flux", strategy, prompts=SIX)
    ended = render(ranks, 2, path, f"support.patches:{patch}")
    print(f"{patch}: {ended.seconds:.1f} s, {ended.codes}")
    assert all(ended.codes), ended.words
    assert not ended.was_forced
    assert failures(path) == [2]
    # The next run does the others first, and ends at the same image again.
    ended = render(ranks, 2, path, f"support.patches:{patch}", "support.patches:impatient")
    assert failures(path) == [2]
    assert images(path) == [0, 1, 3, 4, 5]
    # Once the cause is gone, one more run completes the folder.
    assert render(ranks, 2, path).codes == [0, 0]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job(ranks, models, tmp_path):
    path = write(tmp_path / "job", models / "flux", ULYSSES, prompts=SIX)
    ended = render(ranks, 2, path, "support.patches:die_inside_on_last_rank")
    print(f"killed: {ended.seconds:.1f} s, {ended.codes}")
    assert not ended.was_forced
    assert all(ended.codes)
    assert render(ranks, 2, path).codes == [0, 0]
    assert images(path) == [0, 1, 2, 3, 4, 5]


# --- device_map -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", CLASSES)
def test_device_map_with_cpu_and_disk_gives_equal_images(ranks, models, tmp_path, model):
    path = write(tmp_path / "one", models / model, "data_parallel")
    assert render(
        ranks, 1, path, "support.patches:keep_floats", "support.patches:copy_weights"
    ).codes == [0]
    some = {"flux": ("250KB", "150KB"), "qwen": ("600KB", "430KB")}[model]
    for memory in ("1GB", *some):  # all on the CPU, some blocks on disk, almost all of them
        strategy = f"{{kind: device_map, max_memory: {{cpu: {memory}}}}}"
        job = write(tmp_path / memory, models / model, strategy)
        ended = render(ranks, 1, job, "support.patches:keep_floats", "support.patches:say_places")
        assert ended.codes == [0], ended.words
        assert ("disk" in ended.words) == (memory != "1GB")
        pairs = list(zip(floats(path.parent), floats(job.parent), strict=True))
        difference = max(np.abs(one - other).max() for one, other in pairs)
        print(f"{model} cpu {memory}: {difference:.1e}")
        assert difference == (0 if memory != "1GB" else pytest.approx(0, abs=1e-6))


@pytest.mark.parametrize("model", CLASSES)
def test_phases_give_equal_images(ranks, models, one_process, tmp_path, model):
    path = write(
        tmp_path / "job", models / model, "{kind: device_map, phases: true}", prompts=PROMPTS
    )
    ended = render(ranks, 1, path, "support.patches:count_loads", "support.patches:keep_floats")
    assert ended.codes == [0], ended.words
    # Read once for all three images; never two phases' weights together.
    loads = [line.split()[1] for line in ended.words.splitlines() if line.startswith("load ")]
    assert len(loads) == len(set(loads)) >= 3
    for one, other in zip(one_process[model], floats(path.parent), strict=True):
        assert np.array_equal(one, other)


def test_a_prompt_that_fails_in_a_phase_leaves_the_others(ranks, models, tmp_path):
    strategy = "{kind: device_map, phases: true}"
    path = write(tmp_path / "job", models / "flux", strategy, prompts=SIX)
    ended = render(ranks, 1, path, "support.patches:fail_encoding")
    assert ended.codes == [3], ended.words
    assert failures(path) == [2]
    assert images(path) == [0, 1, 3, 4, 5]


# --- what plan says, and the self-check ---------------------------------------------------------


@pytest.mark.parametrize("model", CLASSES)
def test_weights_of_a_rank_are_as_plan_predicts(ranks, models, tmp_path, model):
    path = write(tmp_path / "job", models / model, "{kind: tensor_parallel, degree: 2}")
    planned = ranks(1, "plan", path, "--devices", "2x24GiB", "--json", folder=path.parent)
    table = json.loads(planned.output[0])["comparison"]["strategies"]
    row = next(row for row in table if row["strategy"] == "tensor_parallel")
    ended = render(ranks, 2, path, "support.patches:say_weights")
    held = [int(words.split("bytes ")[1].split()[0]) for words in ended.output]
    print(f"{model}: planned {row['weights']}, held {held}")
    for count in held:
        assert count == pytest.approx(row["weights"], rel=0.02)


def test_the_self_check_lets_a_right_replica_work_and_stops_a_wrong_one(ranks, models, tmp_path):
    path = write(tmp_path / "job", models / "flux", ULYSSES)
    ended = ranks(
        2, path, "--self-check", patches=["support.patches:wrong_images"], folder=path.parent
    )
    assert ended.codes[0] == 2, ended.words
    assert "is not right: it differs from the image of plain diffusers: " in ended.words
    assert ended.words.count("is not right") == 1
    assert images(path) == []
    ended = ranks(2, path, "--self-check", folder=path.parent)
    assert ended.codes == [0, 0], ended.words
    assert images(path) == [0, 1, 2]


def test_auto_is_recorded(ranks, models, tmp_path):
    path = write(tmp_path / "job", models / "flux", "auto")
    ended = render(ranks, 2, path)
    assert ended.codes == [0, 0]
    choice = "strategy auto: data_parallel, since there is no GPU, and it needs none"
    assert choice in ended.words
    out = path.parent / "out"
    assert json.loads((out / "summary.json").read_text())["launch"]["choice"] == choice
    text = (out / "manifest.yaml").read_text()
    assert f"# {choice}\n" in text
    assert "kind: data_parallel" in text
    assert render(ranks, 1, path).codes == [0]  # all is there


def test_a_stop_is_the_leaders_to_decide(ranks, models, tmp_path):
    """Both ranks are told to stop in the middle of an image, and leave it at the same step."""
    path = write(tmp_path / "job", models / "flux", ULYSSES, "stop_grace_s: 4\n", SIX)
    path.write_text(path.read_text().replace("num_inference_steps: 2", "num_inference_steps: 40"))
    ended = render(ranks, 2, path, "support.patches:slow_steps", "support.patches:stop_soon")
    print(f"stopped: {ended.seconds:.1f} s, {ended.codes}")
    assert ended.codes == [75, 0], ended.words
    assert not (path.parent / "out" / "failures.jsonl").exists()


def test_a_refusal_is_one_line_on_all_ranks_together(ranks, models, tmp_path):
    path = write(tmp_path / "job", models / "flux", "{kind: tensor_parallel, degree: 3}")
    ended = ranks(3, path, folder=path.parent)
    assert set(ended.codes) == {2}
    said = [line for line in ended.words.splitlines() if line.startswith("runner: ")]
    assert said == [
        "runner: strategy: degree 3 does not divide the 4 attention heads of "
        "FluxTransformer2DModel; use one of 1, 2, 4; of these 3 processes take 1"
    ]
    assert "Traceback" not in ended.words
