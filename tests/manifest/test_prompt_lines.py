"""Prompt files with one prompt per line: streamed, strict."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sources import read, write

from runner.errors import InterruptedRunError, ManifestError
from runner.manifest.prompts import Prompt
from runner.manifest.sources.prompt_list import Overrides


def test_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    data = "\ufeffa cat\r\r\n\n  \nno\n007\t8\na\u2028b # not a comment\nlast"
    prompts = read(write(tmp_path / "list.txt", data))
    wanted = ["a cat", "no", "007\t8", "a\u2028b # not a comment", "last"]
    assert [item.prompt for item in prompts] == wanted
    assert [prompts[i].prompt for i in range(len(prompts))] == wanted
    assert [item.prompt for item in prompts[1:3]] == wanted[1:3]


# Case 62: files that were joined have one at each seam.
@pytest.mark.parametrize(("name", "quote"), [("list.txt", ""), ("list.jsonl", '"')])
def test_byte_order_marks_within_a_file(tmp_path: Path, name: str, quote: str) -> None:
    lines = [f"{mark}{quote}{word}{quote}\n" for mark, word in ("\ufeffa", "\ufeffb", ("", "c"))]
    prompts = read(write(tmp_path / name, "".join(lines)))
    assert [item.prompt for item in prompts] == ["a", "b", "c"]
    assert [prompts[i].prompt for i in range(3)] == ["a", "b", "c"]


def test_jsonl_has_an_object_or_a_string_a_line(tmp_path: Path) -> None:
    data = (
        '"a cat"\n\n{"prompt": "a fox", "seed": 7, "parameters": {"height": 64}}\n'
        '{"prompt": "caf\\u00e9"}'
    )
    prompts = read(write(tmp_path / "list.jsonl", data))
    assert list(prompts) == [
        Prompt("a cat"),
        Prompt("a fox", 7, {"height": 64}),
        Prompt("café"),
    ]
    assert prompts[1] == list(prompts)[1]


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(-3e38, 3e38) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(words, st.none() | st.integers(0, 2**63 - 1), values), min_size=1))
def test_a_line_that_is_known_to_be_good_reads_as_the_first_time(
    tmp_path: Path, given: list[tuple[str, int | None, Any]]
) -> None:
    items = [
        {"prompt": text, "seed": seed, "parameters": {"sigmas": value}}
        for text, seed, value in given
    ]
    path = write(tmp_path / "list.jsonl", "\n".join(map(json.dumps, items)))
    wanted = [Prompt(**item) for item in items]
    prompts = read(path)
    assert repr(list(prompts)) == repr(wanted)
    assert list(prompts.overrides()) == [Overrides(item.seed, item.parameters) for item in wanted]


texts = st.text() | st.sampled_from(["\\", '"', "\ud83e\udd8a", "\u2028", '{"prompt": "a"}'])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.booleans())
def test_a_prompt_without_more_reads_as_one_with_more(
    tmp_path: Path, text: str, is_ascii: bool
) -> None:
    path = tmp_path / "list.jsonl"
    found = []
    for more in ({}, {"seed": None, "parameters": {}}):
        line = json.dumps({"prompt": text, **more}, ensure_ascii=is_ascii)
        path.write_bytes(line.encode(errors="surrogatepass"))
        try:
            found.append(str(list(read(path))))
        except ManifestError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_what_is_found_good_can_be_read(tmp_path: Path) -> None:
    nested = '{"prompt": "a", "parameters": {"sigmas": %s}}'
    lines = [nested % ("[" * depth + "]" * depth) for depth in (1, 50, 58)]
    assert len(list(read(write(tmp_path / "list.jsonl", "\n".join(lines))))) == 3


@pytest.mark.parametrize("name", ["list.txt", "list.jsonl"])
def test_a_file_that_changes_after_it_was_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, '"a"\n\n"b"\n"c"')
    prompts, before = read(path), [*read(path)]
    write(path, '"a"\n\n"b"\n"c"\n"d"\n')  # added
    assert [*prompts] == before
    assert prompts.checksum() != read(path).checksum()
    write(path, '"a"\n\n"x"\n"c"')
    assert prompts[0] == before[0]
    with pytest.raises(InterruptedRunError, match=rf"{name}:3: not what it was when"):
        list(prompts)
    write(path, '"a"')
    with pytest.raises(InterruptedRunError, match=rf"{name}:1: not what it was when"):
        prompts[2]
    path.unlink()
    with pytest.raises(InterruptedRunError, match="No such file .* put it back"):
        prompts[0]


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    data = b"\n".join(
        [
            b'{"prompt": "good"}',
            b'{"prompt": 7}',
            b'{"promt": "a"}',
            b'{"prompt": "a", "seed": -1}',
            b'{"prompt": "a", "prompt": "b"}',
            b"{",
            b'{"prompt": "\xff"}',
            b"[1]",
            b'{"prompt": "a", "parameters": {"guidance_scale": NaN}}',
            b'{"prompt": "\\ud800"}',
            b'{"prompt": "a", "parameters": {"prompt": "b"}}',
            b'{"prompt": "a", "parameters": {"guidance_scale": 1e999}}',
            b'{"prompt": "a", "parameters": {"sigmas": ["\\ud800"]}}',
            b"[" * 100_000,
            b'{"prompt": "a", "parameters": {"sigmas": ' + b"[" * 220 + b"]" * 220 + b"}}",
            b'{"prompt": "a", "parameters": {"sigmas": ' + b"[" * 300 + b"]" * 300 + b"}}",
            b'{"prompt": "a", "parameters": {"height": "' + b"x" * 3000 + b'"}}',
            b'{"prompt": "a", "' + b"x" * 3000 + b'": 1}',
            b'{"prompt": "a", "steps": 17}',
            b'{"Prompt": "a"}',
            b'"a"\r"b"',
        ]
    )
    with pytest.raises(ManifestError) as caught:
        read(write(tmp_path / "list.jsonl", data))
    found = [str(problem) for problem in caught.value.problems]
    for line in {*range(2, 22)} - {13, 15, 16, 18}:
        assert any(problem.startswith(f"list.jsonl:{line}: ") for problem in found), line
    assert not any(problem.startswith("list.jsonl:1: ") for problem in found)
    near = "did you mean prompt? Rename it, or write columns: {prompt: NAME}; for data of your own "
    near += "columns: {prompt: null}"
    assert f"list.jsonl:3: promt: unknown; {near.replace('NAME', 'promt')}" in found
    assert "list.jsonl:5: prompt: given twice; keep one" in found
    assert "list.jsonl:14: nested too deep: 60 levels at most (and 2 more lines)" in found
    assert any(
        ":19: steps: unknown; did you mean num_inference_steps? Rename" in line for line in found
    )
    assert f"list.jsonl:20: Prompt: unknown; {near.replace('NAME', 'Prompt')}" in found
    assert "save the file with \\n line ends" in found[-1]
    assert max(map(len, found)) < 250


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"a\nb\rc\rd\n", r"list.txt:2: a carriage return within the line; save the file with \n"),
        ("a cat".encode("utf-16-le"), r"list.txt:1: the control character '\x00' at column 2; "),
        (b"\n\x1b[31mred", r"list.txt:2: the control character '\x1b' at column 1; remove it"),
        ("a\x85b".encode(), r"list.txt:1: the control character '\x85' at column 2; "),
    ],
)
def test_text_that_is_not_a_prompt_a_line(tmp_path: Path, data: bytes, wanted: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(write(tmp_path / "list.txt", data))
    assert str(caught.value).startswith(wanted)


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("list.txt", b"", "list.txt: no prompts in it"),
        ("list.txt", b" \n\n", "no prompts in"),
        ("list.jsonl", b"", "no prompts in"),
        ("list.doc", b"a", "prompt files end in .txt, .jsonl, .*; or add format"),
        ("list.txt", "a cat".encode("utf-16"), "UTF-16 text; save it as UTF-8"),
    ],
)
def test_files_without_prompts(tmp_path: Path, name: str, data: bytes, wanted: str) -> None:
    with pytest.raises(ManifestError, match=wanted):
        read(write(tmp_path / name, data))


def test_a_file_of_many_bad_lines_ends_early(tmp_path: Path) -> None:
    lines = (f'{{"prompt": "a", "seed": -{number}}}\n' for number in range(1, 5000))
    with pytest.raises(ManifestError) as caught:
        read(write(tmp_path / "list.jsonl", "".join(lines)))
    assert len(caught.value.problems) == 100
    assert str(caught.value).count("\n") < 60


# Case 14.
def test_equal_faults_are_said_once(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        read(write(tmp_path / "list.jsonl", '"a"\n' + '{"caption": "a cat"}\n' * 553))
    assert str(caught.value) == (
        "list.jsonl:2: prompt is missing; write columns: {prompt: caption} (and 552 more lines)"
    )
