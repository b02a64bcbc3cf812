"""report.html in a real browser: what it shows, finds and copies, and that texts stay texts."""

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import CHROMIUM, Browser, browser
from support.jobs import Job
from support.launch import plan_of

from runner.manifest.load import load

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs chromium")

OWNED = "document.title='owned'"
HOSTILE = [
    f"</script><script>{OWNED}</script>",
    f'"><img src=x onerror="{OWNED}">\'',
    f"<!--<script>{OWNED}//",
    "{{ 7 * 7 }} {% raw %} ${7*7} &lt;b&gt; ]]>",
    "NUL \0, bell \x07, DEL \x7f, NEL \x85",
    "line\u2028 and paragraph\u2029, BOM \ufeff.",
    "\u202egnp.exe שלום עולם, a cat",
    "two\nlines and\ta tab \\ \"quotes\" 'single' #comment: - yes",
    "🦊 in 雪",
    "long " * 4000,
]
ALL_LOADED = "[...document.querySelectorAll('.tile img')].every(one => one.naturalWidth === 16)"
PLAIN = ["a red house", "a blue boat"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Hostile texts, with two values of two parameters; one image fails, one is flagged."""
    parameters = [
        {"num_inference_steps": steps, "guidance_scale": scale}
        for steps, scale in itertools.product((4, 8), (1.5, 7))
    ]
    prompts: list[Any] = [
        {"prompt": text, "id": f"<i>{number}</i>", "parameters": parameters[number % 4]}
        for number, text in enumerate([*HOSTILE, *PLAIN])
    ]
    folder = tmp_path_factory.mktemp("page")
    job = Job(folder, prompts=prompts, report=True, seed=2**53 - 5)
    hooks = {"raise": [PLAIN[0]], "keep": [PLAIN[1]]}
    assert job.run(hooks=hooks).code == 3
    return job


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(job: Job, chromium: Browser) -> Iterator[Any]:
    chromium.complaints.clear()
    page = chromium.open(job.output / "report.html")
    yield page
    assert page.title().startswith("job · ")
    page.context.close()
    assert chromium.complaints == []


def test_hostile_texts_stay_texts(page: Any) -> None:
    tiles = page.locator(".tile .words")
    assert [tiles.nth(at).text_content() for at in range(tiles.count())] == [*HOSTILE, *PLAIN]
    alternatives = page.locator(".tile img").evaluate_all("all => all.map(one => one.alt)")
    assert alternatives == [*HOSTILE, PLAIN[1]]
    assert page.locator("script").count() == 2
    assert page.locator("i").count() == 0


def test_thumbnails_are_shown(page: Any) -> None:
    page.wait_for_function(ALL_LOADED)
    shown = page.locator(".tile img").evaluate_all("all => all.map(one => one.src)")
    assert len(shown) == 11
    assert all(".runner/thumbnails/" in source for source in shown)


def test_a_copy_without_hidden_files_shows_the_images(
    job: Job, chromium: Browser, tmp_path: Path
) -> None:
    shutil.copytree(job.output, tmp_path / "copy", ignore=shutil.ignore_patterns(".runner"))
    page = chromium.open(tmp_path / "copy/report.html")
    page.wait_for_function(ALL_LOADED)
    page.context.close()


def test_search_filters_and_order(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("ScRiPt owned")
    assert numbers(page) == [0, 2]
    page.locator("input[type=search]").fill("<i>4</i>")
    assert numbers(page) == [4]
    page.locator("input[type=search]").fill("no such thing")
    assert page.locator(".results").text_content() == "No image fits."
    page.locator("input[type=search]").fill("")
    for kind, wanted in (("failed", [10]), ("flagged", [11]), ("all", list(range(12)))):
        page.locator(f"button[data-kind={kind}]").click()
        assert numbers(page) == wanted
    page.get_by_label("Add a filter").select_option(label="num_inference_steps")
    page.get_by_label("num_inference_steps", exact=True).select_option("8")
    assert numbers(page) == [2, 3, 6, 7, 10, 11]
    page.get_by_label("Add a filter").select_option(label="guidance_scale")
    page.get_by_label("guidance_scale", exact=True).select_option("7")
    assert numbers(page) == [3, 7, 11]
    page.get_by_label("Sort").select_option(label="seed")
    page.get_by_label("Reverse the order").click()
    assert numbers(page) == [11, 7, 3]


def test_the_grid_has_an_axis_for_each_parameter(page: Any) -> None:
    show(page, "Grid")
    heads = page.locator(".grid th").all_text_contents()
    assert heads == ["guidance_scale", "num_inference_steps", "1.5", "7", "4", "8"]
    cells = page.locator(".grid td .line b").all_text_contents()
    assert cells == ["000000 + 2 more", "000001 + 2 more", "000002 + 2 more", "000003 + 2 more"]


def test_failures_have_their_reasons(page: Any) -> None:
    show(page, "Failures")
    assert page.locator(".failure .reason").all_text_contents() == ["ValueError: asked for"]
    page.locator(".failure a").click()
    wait_for_image(page, PLAIN[0])


def test_keys_alone_are_enough(page: Any) -> None:
    page.locator(".tile").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_image(page, HOSTILE[1])
    page.keyboard.press("ArrowRight")
    wait_for_image(page, HOSTILE[2])
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement.dataset.row === '2'")
    assert not page.locator("dialog").is_visible()


def test_the_first_arrow_chooses_the_first_image(page: Any) -> None:
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_image(page, HOSTILE[0])
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.activeElement.dataset.row === '0'")


def test_a_sweep_with_names_of_its_own(tmp_path: Path, chromium: Browser) -> None:
    """Names are shown and found; axes have their author's order; what a cell hides is named."""
    sweep = {"size": ["small", "large"], "guidance_scale": [7, 2], "animal": ["owl", "cat"]}
    prompts = ["a {size} {animal}"]
    job = Job(tmp_path, prompts=prompts, sweep={"product": sweep}, report=True)
    assert job.run("--set", 'output.name="{animal}/{size}-{guidance_scale}"').code == 0
    page = chromium.open(job.output / "report.html", viewport={"width": 390, "height": 800})
    names = page.locator(".tile .line b").all_text_contents()
    assert names[:3] == ["owl/small-7.png", "owl/large-7.png", "owl/small-2.png"]
    page.locator("input[type=search]").fill("cat/large-2")
    assert page.locator(".tile .line b").all_text_contents() == ["cat/large-2.png"]
    page.locator(".tile").click()
    wait_for_image(page, "a large cat")
    assert page.locator("dialog h2").text_content() == "cat/large-2.png"
    page.keyboard.press("Escape")
    page.locator("input[type=search]").fill("")
    show(page, "Grid")
    heads = page.locator(".grid th").all_text_contents()
    assert heads == ["animal", "guidance_scale", "owl", "cat", "7", "2"]
    assert "which differ in size; filter" in page.locator(".results .note").text_content()
    assert page.locator(".scroll").evaluate("box => box.scrollWidth > box.clientWidth")
    page.locator(".scroll.goes-on").wait_for()
    page.locator(".scroll").evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    page.locator(".scroll:not(.goes-on)").wait_for()
    page.context.close()


def test_a_copied_manifest_makes_the_same_image(page: Any, job: Job, tmp_path: Path) -> None:
    planned = plan_of(load(job.manifest))
    for task in planned.tasks():
        page.evaluate(f"location.hash = '#image-{task.index}'")
        page.wait_for_function(
            f"document.querySelector('dialog h2')?.textContent === '{task.index:06d}'"
        )
        copied = tmp_path / "copied.yaml"
        copied.write_text(page.locator(".entry").text_content(), encoding="utf-8")
        (again,) = plan_of(load(copied)).tasks()
        same = (again.prompt, again.seed, again.parameters)
        assert same == (task.prompt, task.seed, task.parameters)
        assert load(copied).manifest.model == load(job.manifest).manifest.model


@pytest.mark.parametrize("system", ["light", "dark"])
def test_light_and_dark_by_the_system_or_by_choice(
    job: Job, chromium: Browser, system: str
) -> None:
    page = chromium.open(job.output / "report.html", color_scheme=system)
    paper = {"light": "rgb(250, 249, 247)", "dark": "rgb(22, 22, 20)"}
    shown = "getComputedStyle(document.body).backgroundColor"
    for colours in (system, "light", "dark", system):  # auto, light, dark, auto
        assert page.evaluate(shown) == paper[colours]
        page.click("#theme")
    page.context.close()


def test_replicas_are_drawn_over_time(page: Any) -> None:
    show(page, "Replicas")
    assert page.locator(".lane").count() == 1
    words = page.locator(".lane svg").get_attribute("aria-label")
    assert re.fullmatch(r"Replica 0: loading [\d.]+ s, busy [\d.]+ s", words)


def show(page: Any, view: str) -> None:
    page.get_by_role("link", name=view).click()
    page.locator(".views a[aria-current]", has_text=view).wait_for()


def wait_for_image(page: Any, prompt: str) -> None:
    """Until the viewer shows the image of this prompt."""
    shown = "text => document.querySelector('dialog[open] .prompt')?.textContent === text"
    page.wait_for_function(shown, arg=prompt)


def numbers(page: Any) -> list[int]:
    return [int(text) for text in page.locator(".tile .line b").all_text_contents()]
