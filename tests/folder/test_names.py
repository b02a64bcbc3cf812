"""File names of images by a template: safe, complete, one for each image, found again."""

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ManifestError
from runner.folder.names import check_names, template_name
from runner.manifest.name_template import parse
from runner.plan import Plan, Task

Make = Callable[..., Plan]


def named(template: str, **values: Any) -> str:
    task = Task(7, 3, "a cat", 42, {"width": 64}, variation=1)
    fields = {name: getattr(task, name) for name in Task.__slots__} | values
    return template_name(parse(template), Task(**fields))


@pytest.mark.parametrize(
    ("template", "values", "wanted"),
    [
        ("{id}_{variation:02}", {"id": "fox-1"}, "fox-1_01.png"),
        ("{prompt_index:05}/samples/{variation:04}", {}, "00003/samples/0001.png"),
        ("{id:05}", {"id": "17"}, "00017.png"),
        ("{index}-{seed}-{width}", {}, "7-42-64.png"),
        ("{tag}/{index}", {"meta": {"tag": "two objects"}}, "two objects/7.png"),
        ("g{guidance_scale}", {"sweep": {"guidance_scale": 3.5}}, "g3.5.png"),
        ("{prompt:.3}{index}", {"prompt": "a/b c"}, "a_b7.png"),
        ("{{{index}}}", {}, "{7}.png"),
        ("{id}", {"id": "../../etc/passwd"}, "__.._etc_passwd.png"),
        ("{id}", {"id": 'a\\b:c*d?e"f<g>h|i\nj\x1b'}, "a_b_c_d_e_f_g_h_i_j_.png"),
        ("{id}", {"id": ".hidden"}, "_hidden.png"),
        ("{id}/{index}", {"id": "..."}, "_/7.png"),
        ("{id}/{index}", {"id": " a. ."}, "a/7.png"),
        ("{id}", {"id": "e\u0301"}, "é.png"),
        ("{id}", {"id": "\u202egnp"}, "_gnp.png"),
    ],
)
def test_names(template: str, values: dict[str, Any], wanted: str) -> None:
    assert named(template, **values) == wanted


@given(st.text(min_size=1, max_size=40))
def test_no_value_leads_elsewhere(text: str) -> None:
    name = named("a{id}/{index}", id=text)
    folder, slash, file = name.partition("/")
    assert (slash, file) == ("/", "7.png")
    assert folder.isprintable()
    assert not set(folder) & set('\\/:*?"<>|')
    assert folder == folder.lstrip(" ").rstrip(" .") == unicodedata.normalize("NFC", folder)
    assert not folder.startswith(".")


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{id!r}", "only :04"), ("{index:x}", "only :04"), ("{}", "has no name"),
        ("a/../{index}", "'..' is no name"), ("/{index}", "'' is no"), ("{index}/", "'' is no"),
        (".{index}", "is no name"), ("images", "add {index}"), ("{index}.png", "leave .png out"),
        ("{index", "write a brace itself"), ("a\\{index}", "cannot stand in a name"),
    ],
)  # fmt: skip
def test_what_is_no_template(template: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        parse(template)


@pytest.mark.parametrize(
    ("prompts", "name", "wanted"),
    [
        ('[{"id": "a"}, {"id": "A"}]', "{id}", "prompts[1]: output.name: images 0 and 1 would bo"),
        ('[{"id": "a"}, {}]', "{id}", "prompts[1]: output.name: {id}: not given; known are index"),
        ('[{"id": "con"}]', "{id}", "con.png: a reserved name; put text before or after"),
        ('[{"id": "NUL.x"}]', "{id}", "NUL.x.png: a reserved name"),
        ('[{"id": "LPT¹ .x"}]', "{id}", "LPT¹ .x.png: a reserved name"),
        ('[{"id": "summary.json"}]', "{id}/{index}", "summary.json/0.png: a reserved name"),
        ('[{"id": "manifest-prompts.jsonl"}]', "{id}/{index}", "l/0.png: a reserved name"),
        ('[{"id": "%s"}]' % ("x" * 190), "/".join(["{id}"] * 6), "longer than 1000 bytes"),
        (
            '[{"id": "a"}, {"id": "A"}]',
            "{id}/{index}",
            "prompts[1]: output.name: the folders a and A",
        ),
        ('[{"id": "%s"}]' % ("x" * 300), "{id}", "longer than 200 bytes; cut a value, as in {id:."),
        ('[{"id": "x"}]', "{id:05}", "{id:05}: x is no whole number; leave :05 out"),
        ('[{"id": "a", "variations": 2}]', "{id}", "would both be a.png; add {variation}"),
        ('[{"id": "\u00e9"}, {"id": "e\u0301"}]', "{id}", "would both be"),
        ('[{"id": "a/b"}, {"id": "a:b"}]', "{id}", "would both be a_b.png; add {prompt_index}"),
    ],
)
def test_names_that_cannot_be(plan: Make, prompts: str, name: str, wanted: str) -> None:
    items = [{"prompt": "a cat", **item} for item in json.loads(prompts)]
    made = plan(model="demo", seed=1, prompts=items, output={"name": name})
    with pytest.raises(ManifestError) as caught:
        check_names(made, parse(name))
    assert wanted in str(caught.value)


def test_a_sweep_needs_its_values_in_the_names(plan: Make) -> None:
    sweep = {"product": {"guidance_scale": [1.0, 2.0]}}
    made = plan(model="demo", seed=1, prompts=["a"], sweep=sweep)
    with pytest.raises(ManifestError, match="add {guidance_scale}"):
        check_names(made, parse("{prompt_index}_{variation}"))
    assert len(check_names(made, parse("{guidance_scale}/{prompt_index}"))) == 2
