"""The bundled model: its drawing code, its captions, its check, and the weights that ship."""

import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from runner.demo import MODEL_DIR, PARAMETERS, SIZES, WORDS, knows
from runner.demo.captions import (
    TERRAINS,
    THINGS,
    Landscape,
    Light,
    Shape,
    Thing,
    caption,
    held_out,
    random_scene,
    things_on,
    with_unknown_words,
)
from runner.demo.check import Score, mark, questions
from runner.demo.draw import PALETTE, draw, light_centre


@pytest.fixture(scope="module")
def pipeline():
    import torch
    from diffusers import DiffusionPipeline

    loaded = DiffusionPipeline.from_pretrained(MODEL_DIR, dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def ask(pipeline, prompt, seed=0, **parameters):
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    parameters = PARAMETERS | parameters
    return pipeline(prompt, **parameters, generator=generator, output_type="np").images[0]


# --- drawing and captions ---------------------------------------------------------------------


def test_importing_the_package_loads_neither_torch_nor_numpy():
    code = "import sys, runner.demo; print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_drawing_is_deterministic_and_leaves_its_cache_alone():
    scene = Landscape("night", "hills", "green", Light("moon", "white", "left"), None)
    first = draw(scene, (128, 128)).copy()
    draw(scene._replace(thing=Thing("house", "red")), (128, 128))
    draw(scene._replace(sky="day", light=None), (128, 128))
    assert np.array_equal(first, draw(scene, (128, 128)))


@pytest.mark.parametrize("size", sorted(SIZES))
def test_a_picture_shows_its_colours_where_they_belong(size):
    shape = draw(Shape("circle", "blue", "yellow"), size)
    assert shape.shape == (*size, 3)
    assert shape.min() >= 0
    assert shape.max() <= 1
    assert np.allclose(shape[0, 0] * 255, PALETTE["yellow"], atol=1)
    assert np.allclose(shape[size[0] // 2, size[1] // 2] * 255, PALETTE["blue"], atol=1)
    sun = Light("sun", "red", "right")
    landscape = draw(Landscape("day", "sea", "blue", sun, None), size)
    x, y = light_centre("right", size)
    assert np.allclose(landscape[y, x] * 255, PALETTE["red"], atol=1)


def test_mirroring_changes_the_terrain_only():
    scene = Landscape("day", "mountains", "gray", Light("sun", "yellow", "left"), None)
    one, other = draw(scene, (128, 128)), draw(scene, (128, 128), mirrored=True)
    assert np.array_equal(one[:40], other[:40])
    assert not np.array_equal(one[64:], other[64:])


def test_captions_use_known_words_only():
    rng = random.Random(5)
    words = {
        word
        for _ in range(3000)
        for word in re.findall(r"\w+", caption(random_scene(rng, rng.random() < 0.5), rng))
    }
    assert words <= WORDS
    assert words == WORDS  # and every word is used, so that the list in the README is true


def test_a_caption_names_whatever_is_not_the_default():
    rng = random.Random(6)
    scene = Landscape(
        "night", "flowers", "purple", Light("moon", "orange", "left"), Thing("house", "blue")
    )
    for _ in range(50):
        words = set(re.findall(r"\w+", caption(scene, rng)))
        assert {"purple", "flowers", "orange", "moon", "left", "blue", "house"} <= words
        assert words & {"night", "stars"}


def test_unknown_words_are_added_and_none_is_lost():
    text = "a red house on green hills"
    noisy = with_unknown_words(text, random.Random(1), 0.5).split()
    assert "[UNK]" in noisy
    assert [word for word in noisy if word != "[UNK]"] == text.split()


def test_one_scene_in_eight_is_held_out_and_never_trained_on():
    rng = random.Random(7)
    scenes = [
        Landscape("day", t, c, None, Thing(kind, colour))
        for t, row in TERRAINS.items()
        for c in row
        for kind in things_on(t)
        for colour in THINGS[kind]
    ]
    assert 0.02 < sum(map(held_out, scenes)) / len(scenes) < 0.25
    assert not any(held_out(random_scene(rng, held=False)) for _ in range(300))
    assert all(held_out(random_scene(rng, held=True)) for _ in range(50))


def test_the_readme_lists_the_words():
    text = MODEL_DIR.with_name("README.md").read_text(encoding="utf-8")
    listed = re.search(r"All words:\s+```text\n(.*?)```", text, re.DOTALL)
    assert listed is not None
    assert set(listed[1].split()) == WORDS


@pytest.mark.parametrize(("prompt", "known"), [
    ("A red HOUSE, please.", True), ("sunset", True), ("a photograph of an astronaut", False),
    ("the", False), ("", False),
])  # fmt: skip
def test_knows(prompt, known):
    assert knows(prompt) is known


# --- the check --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", sorted(SIZES))
def test_the_check_passes_real_pictures_and_fails_those_of_other_prompts(size):
    asked = questions(16 if size == (128, 128) else 8)
    real, mismatched = Score(), Score()
    for question, other in zip(asked, asked[1:] + asked[:1], strict=True):
        picture = draw(question.scene, size, mirrored=question.seed % 2 == 0)
        real.add(mark(picture, question.scene))
        mismatched.add(mark(picture, other.scene))
    assert real.share("all right") >= 0.98
    assert mismatched.share("all right") <= 0.1


def test_the_check_counts_a_blob_as_unreadable():
    scene = Landscape("day", "hills", "green", Light("sun", "yellow", "middle"), None)
    picture = draw(scene, (128, 128)).copy()
    picture[8:56, 8:120] = (1.0, 0.2, 0.2)
    marks = mark(picture, scene)
    assert not marks["light kind"]
    assert not marks["all right"]


def test_the_check_sees_a_second_moon():
    scene = Landscape("night", "sea", "blue", Light("moon", "white", "left"), None)
    other = draw(scene._replace(light=Light("moon", "white", "right")), (128, 128))
    picture = draw(scene, (128, 128)).copy()
    picture[:, 64:] = other[:, 64:]
    assert not mark(picture, scene)["all right"]


# --- the weights that ship --------------------------------------------------------------------


def test_the_model_is_small_and_only_safetensors():
    files = [path for path in MODEL_DIR.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 16_000_000
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def test_the_transformer_can_be_split_over_four_ranks():
    config = json.loads((MODEL_DIR / "transformer" / "config.json").read_text())
    assert config["num_attention_heads"] % 4 == 0
    tokens = PARAMETERS["height"] // 16 * (PARAMETERS["width"] // 16)
    assert tokens % 4 == 0
    assert PARAMETERS["max_sequence_length"] % 4 == 0


def test_the_tokenizer_knows_the_words_and_no_others(pipeline):
    vocabulary = set(pipeline.tokenizer.get_vocab())
    assert vocabulary - {"[PAD]", "[UNK]", "[SPARE]", "[END]"} == WORDS
    same = pipeline.tokenizer("A red house, on HILLS!").input_ids
    assert same == pipeline.tokenizer("a red house on hills").input_ids


@pytest.mark.parametrize("scene", [
    Shape("circle", "blue", "yellow"),
    Landscape("day", "sea", "blue", None, None),
    Landscape("night", "hills", "green", Light("moon", "white", "left"), None),
])  # fmt: skip
def test_the_model_draws_what_it_is_asked_for(pipeline, scene):
    prompt = caption(scene, random.Random(0))
    assert mark(ask(pipeline, prompt), scene)["all right"]


def test_the_seed_decides_and_the_same_seed_gives_the_same_picture(pipeline):
    prompt = "green hills at dawn"
    first = ask(pipeline, prompt, seed=3, num_inference_steps=2)
    assert np.array_equal(first, ask(pipeline, prompt, seed=3, num_inference_steps=2))
    assert not np.array_equal(first, ask(pipeline, prompt, seed=4, num_inference_steps=2))


def test_the_encoder_undoes_the_decoder(pipeline):
    import torch

    picture = draw(Landscape("day", "hills", "green", None, Thing("house", "red")), (128, 128))
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] * 2 - 1
    with torch.no_grad():
        latents = pipeline.vae.encode(pixels).latent_dist.mode()
        again = pipeline.vae.decode(latents).sample.clamp(-1, 1)
    assert 10 * torch.log10(4 / (again - pixels).square().mean()) > 27
