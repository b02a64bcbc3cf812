"""YAML → manifest: strict, every problem at once with its place and remedy."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import ManifestError
from runner.manifest import schema as manifest_module
from runner.manifest import yaml_tree
from runner.manifest.load import load, parse
from runner.manifest.resolve import Resolved, dump, fill
from runner.manifest.schema import SeedSpec
from runner.manifest.yaml_tree import document

Write = Callable[..., Path]
FORBIDDEN = (
    ":2: not YAML: the character '{0}' is not allowed as it is; remove it, or write {0} in double "
    "quotes"
)


def problems(path: Path, *sets: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load(path, sets)
    return [str(problem).removeprefix(str(path)) for problem in caught.value.problems]


def test_short_forms_are_their_long_forms(manifest: Write) -> None:
    short = manifest(
        "model: demo\nstrategy: data_parallel\noutput: out\nseed: 3\nprompts: [a cat]", "s.yaml"
    )
    long = manifest(
        "model: {id: demo}\nstrategy: {kind: data_parallel}\noutput: {dir: out}\n"
        "seed: {start: 3}\nprompts: [{prompt: a cat}]",
        "l.yaml",
    )
    assert load(short).manifest == load(long).manifest


def test_a_good_manifest_is_frozen(manifest: Write) -> None:
    loaded = load(manifest("model: demo\nprompts: [a cat]"))
    with pytest.raises(ValueError, match="frozen"):
        loaded.manifest.batch_size = 2  # type: ignore[misc]


# Case 54: bare scalars that YAML 1.1 turns into something else.
def test_prompts_that_yaml_changed_are_refused_in_one_go(manifest: Write) -> None:
    words = ["no", "on", "007", "12:30:45", "2024-01-01", "3.10", "~"]
    path = manifest("model: demo\nprompts:\n" + "".join(f"  - {word}\n" for word in words))
    found = problems(path)
    assert len(found) == 7
    for number, (word, line) in enumerate(zip(words, found, strict=True)):
        assert line.startswith(f":{number + 3}: prompts[{number}]: {word}: ")
        assert line.endswith(f'quote it: "{word}"')
    quoted = manifest("model: demo\nprompts:\n" + "".join(f'  - "{word}"\n' for word in words))
    assert [item.prompt for item in load(quoted).prompts] == words


@pytest.mark.parametrize(
    ("text", "number"),
    [("1_000", "1000"), ("0x10", "16"), ("007", "7"), ("4e0", "4")],
)
def test_numbers_that_yaml_reads_otherwise_come_with_the_plain_one(
    manifest: Write, text: str, number: str
) -> None:
    top = f"model: demo\nprompts: [a cat]\nseed: {text}\n"
    assert problems(manifest(top)) == [f":3: seed: {text}: must be a whole number; write {number}"]
    if text != "4e0":  # text, which a parameter may be: the pipeline's signature tells
        top = f"model: demo\nprompts: [a cat]\nparameters: {{guidance_scale: {text}}}\n"
        assert problems(manifest(top)) == [
            f":3: parameters.guidance_scale: {text}: YAML reads it as the number {number}; "
            f'write {number}, or quote it: "{text}"'
        ]


def parameter(manifest: Write, text: str) -> str:
    """The one problem of a value under `parameters`."""
    path = manifest(f"model: demo\nprompts: [a cat]\nparameters: {{guidance_scale: {text}}}\n")
    (line,) = problems(path)
    return line.removeprefix(f":3: parameters.guidance_scale: {text}: ")


# Case 62: "quote it" is no remedy for a number, and 010 is ten for most people.
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024-01-01", 'YAML reads it as a date; quote it: "2024-01-01"'),
        (".inf", "a number that is not finite; write a finite one"),
        (".nan", "a number that is not finite; write a finite one"),
        ("1.0e+999", "a number that is not finite; write a finite one"),
        ("1e999", "a number that is not finite; write a finite one"),
        (
            "010",
            'YAML reads it as the number 8; write 10, or 8 if octal is meant, or quote it: "010"',
        ),
        ("12:30:00", 'YAML reads it as the number 45000; quote it: "12:30:00"'),
    ],
)
def test_a_parameter_that_yaml_reads_as_no_plain_value(
    manifest: Write, text: str, wanted: str
) -> None:
    assert parameter(manifest, text) == wanted


def test_powers_of_ten_are_numbers_among_parameters(manifest: Write) -> None:
    """YAML 1.1 reads them as text; YAML 1.2, JSON and people do not."""
    path = manifest(
        "model: demo\nprompts: [1e1, {prompt: a, parameters: {guidance_scale: 2.e1}}]\n"
        'parameters: {guidance_scale: 1e1, other: -1E-3, text: "1e1", word: e1}\n'
    )
    loaded = load(path, ["parameters.more=1e2"])
    assert loaded.manifest.parameters == {
        "guidance_scale": 10.0, "other": -0.001, "text": "1e1", "word": "e1", "more": 100.0,
    }  # fmt: skip
    assert loaded.prompts[0].prompt == "1e1"
    assert loaded.prompts[1].parameters == {"guidance_scale": 20.0}
    (path.parent / "again.yaml").write_text(dump(loaded.manifest))
    assert parse(path.parent / "again.yaml").manifest == loaded.manifest


# Case 44: what a tag says is checked, never parsed.
@pytest.mark.parametrize(
    "text",
    [
        "!!int x",
        "!!int ''",
        "!!int 1.5",
        '!!float ""',
        "!!float .",
        '!!float "[[["',
        f'!!float "{"[" * 3000}"',
        "!!null x",
        "!!bool maybe",
        "!!timestamp x",
        "!!binary eA==",
        "!!python/object:os.system x",
        "!own x",
    ],
)
def test_a_tag_that_does_not_fit(manifest: Write, text: str) -> None:
    for place in (f"seed: {text}", f"parameters: {{a: {text}}}"):
        found = problems(manifest(f"model: demo\nprompts: [a]\n{place}\n"))
        assert found[0].startswith(f":3: the tag {text.partition(' ')[0]} does not fit its value")


def test_tags_that_fit(manifest: Write) -> None:
    path = manifest(
        "model: !!str demo\nprompts: [!!str no, ! maybe]\nseed: !!int '5'\n"
        "parameters: {a: !!float 1, b: !!null ~, c: !!bool true}\n"
    )
    loaded = load(path)
    assert [prompt.prompt for prompt in loaded.prompts] == ["no", "maybe"]
    assert loaded.manifest.parameters == {"a": 1.0, "b": None, "c": True}
    assert loaded.manifest.seed == SeedSpec(start=5)


# Case 55: a prompt that YAML shortens is good YAML, and most likely not what was meant.
def test_prompts_that_yaml_shortens(manifest: Write) -> None:
    path = manifest(
        "model: demo\n"
        "prompts:\n"
        "  - a cat #5 on a wall\n"
        "  - a dog # a note\n"
        "  - &pizza slice\n"
        "  - &kept one\n"
        "  - *kept\n"
        "  - a long\n"
        "    text #art\r\n"
        '  - "quoted" #z\n'
        "  - {prompt: 🦊 fox #1\n"
        "    }\n"
        "parameters: {guidance_scale: 3} #x\n"
    )
    loaded = load(path)
    assert [prompt.prompt for prompt in loaded.prompts] == [
        *("a cat", "a dog", "slice", "one", "one", "a long text", "quoted", "🦊 fox")
    ]
    lines = [str(remark).removeprefix(str(path)) for remark in loaded.remarks]
    assert lines == [
        ':3: YAML takes "#5 on a wall" as a comment; quote the whole text if it is part of it',
        ':9: YAML takes "#art" as a comment; quote the whole text if it is part of it',
        ':11: YAML takes "#1" as a comment; quote the whole text if it is part of it',
        ':5: YAML takes "&pizza" as an anchor; quote the text if it is part of it',
    ]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("- @home", "; if this is text, put all of it in quotes"),
        ("- [red] cat", "; if this is text, put all of it in quotes"),
        ("- {red} cat", "; if this is text, put all of it in quotes"),
        ("- %50 off", "; if this is text, put all of it in quotes"),
        ("- `x`", "; if this is text, put all of it in quotes"),
        ("- | cat", "; if this is text, put all of it in quotes"),
        ("- & cat", "; if this is text, put all of it in quotes"),
        ("- prompt: @home", "; if this is text, put all of it in quotes"),
        ('- "a" cat', "; if this is text, put all of it in quotes"),
        ("- a: b: c", '; a text that has ": " in it must stand in quotes'),
        ("\t- a", "; indent with blanks: YAML takes no tabs there"),
    ],
)
def test_a_line_that_wants_quotes(manifest: Write, line: str, wanted: str) -> None:
    (found,) = problems(manifest(f"model: demo\nprompts:\n  - a\n  {line}\n"))
    assert found.startswith(":4: not YAML: ")
    assert found.endswith(wanted)


# Case 49: explaining a fault takes long, so it is done for those that are shown.
def test_only_the_faults_that_are_shown_are_explained(
    manifest: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = list[str]()

    def explain(*_: object) -> str:
        explained.append("")
        return f"words {len(explained)}"

    monkeypatch.setattr("runner.manifest.load.explain", explain)
    keys = "".join(f"key{number}: 1\n" for number in range(20_000))
    with pytest.raises(ManifestError) as caught:
        load(manifest(f"{keys}model: demo\nprompts: [a]\n"))
    assert len(explained) == ManifestError.shown
    assert str(caught.value).splitlines()[0].endswith("job.yaml:1: words 1")
    assert str(caught.value).splitlines()[-1] == "… and 19950 more problems"


# 30,000 anchors of one key, merged by one `<<`.
def test_merging_takes_one_step_for_each_key(
    manifest: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged, real = list[int](), yaml_tree._merged

    def counted(mappings: list[yaml_tree.Node]) -> yaml_tree.Node:
        merged.append(sum(len(mapping.value) for mapping in mappings))
        return real(mappings)

    monkeypatch.setattr(yaml_tree, "_merged", counted)
    anchors = "".join(f"- &a{number} {{k{number}: 1}}\n" for number in range(3000))
    names = ", ".join(f"*a{number}" for number in range(3000))
    root = document(f"many:\n{anchors}all: {{<<: [{names}]}}\n", "x").root
    assert len(root.value["all"].value) == 3000
    assert merged == [3000]


# Case 16.
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "./sdxl.safetensors",
            "Pipeline.from_single_file('sdxl.safetensors').save_pretrained('sdxl')",
        ),
        ("sdxl.ckpt", "a model in one file, and the runner takes a folder; make one"),
        ("a.gguf", "one part of a model; name the hub ID or the folder of the whole model"),
        ("job.yaml", "is a file; a model is a folder, a hub ID or demo"),
    ],
)
def test_a_model_in_one_file(manifest: Write, name: str, wanted: str) -> None:
    (found,) = problems(manifest(f"prompts: [a]\nmodel: {name}\n"))
    assert found.startswith(f":2: model.id: {name}: ")
    assert wanted in found


def test_a_manifest_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.manifest.load.MAX_BYTES", 1 << 20)
    with pytest.raises(ManifestError, match="/dev/zero: more than 1 MiB; put the prompts into"):
        load(Path("/dev/zero"))


def test_a_mapping_where_a_prompt_was_meant_should_be_quoted(manifest: Write) -> None:
    found = problems(manifest("model: demo\nprompts:\n  - a: b\n"))
    assert any("if the line is a prompt, quote it" in line for line in found)
    assert all(line.startswith(":3: prompts[0]") for line in found)


# Case 56.
def test_duplicate_keys_are_refused_with_both_places(manifest: Write) -> None:
    path = manifest(
        "model: demo\nparameters:\n  num_inference_steps: 3\n  num_inference_steps: 4\n"
        "prompts: [a]\nprompts: [b]\n"
    )
    found = problems(path)
    assert f":4: num_inference_steps: given twice, first at {path}:3; keep one" in found
    assert f":6: prompts: given twice, first at {path}:5; keep one" in found


def test_anchors_and_merge_keys(manifest: Write) -> None:
    path = manifest(
        "model: demo\nprompts:\n"
        "  - prompt: a\n    parameters: &shared {negative_prompt: blur, height: 64}\n"
        "  - prompt: b\n    parameters: *shared\n"
        "  - prompt: c\n    parameters: {<<: *shared, height: 32}\n"
    )
    loaded = load(path)
    assert [item.parameters["negative_prompt"] for item in loaded.prompts] == ["blur"] * 3
    assert [item.parameters["height"] for item in loaded.prompts] == [64, 64, 32]


def test_alias_bombs_and_loops_are_refused(manifest: Write) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    assert "aliases expand to more than" in problems(manifest(bomb))[0]
    assert "contains itself" in problems(manifest("a: &a [*a]"))[0]
    assert "nest" in problems(manifest("a: " + "[" * 100_000))[0]


def test_what_is_nested_too_deep(manifest: Write) -> None:
    def nested(depth: int, inner: str = "") -> str:
        return "[" * depth + inner + "]" * depth

    wanted = "nested too deep: 60 levels at most"
    good = "model: demo\nprompts: [a]\nparameters:\n"
    chain = "".join(f"  a{i}: &a{i} {nested(40, f'*a{i - 1}')}\n" for i in range(1, 30))
    assert problems(manifest(f"{good}  a: {nested(100)}")) == [f":4: {wanted}"]
    assert problems(manifest(f"{good}  a0: &a0 1\n{chain}")) == [f":6: {wanted}"]
    path = manifest(f"{good}  a: {nested(58, '1')}")
    assert load(path, [f"parameters.b={nested(58, '1')}"]).manifest.parameters["b"]
    for assignment in (f"parameters.b={nested(59, '1')}", ".".join("a" * 2000) + "=1"):
        (found,) = problems(path, assignment)
        assert found.endswith(wanted)
        assert len(found) < 200


@pytest.mark.parametrize(
    "text",
    [
        "seed: '{nines}'",
        "dtype: {word}",
        "strategy: {word}",
        "on_flagged: {word}",
        "parameters: {{height: {word}}}",
        "parameters: {{height: -{nines}}}",
        "parameters: {{negative_prompt: [{word}]}}",
        "output: {{? {word} : 1}}",
    ],
)
def test_long_values_are_cut(manifest: Write, text: str) -> None:
    line = text.format(word="x" * 3000, nines="9" * 90)
    (found,) = problems(manifest(f"model: demo\n{line}\nprompts: [a]"))
    assert len(found) < 260
    assert "must be" in found or "known keys" in found or "use one of" in found


# Case 57.
def test_unknown_keys_are_refused_at_every_level_with_the_nearest(manifest: Write) -> None:
    path = manifest(
        "model: {id: demo, revison: x}\nguidence: 9\noutputdir: x\nheight: 4\n"
        "strategy: {kind: data_parallel, ulyses: 2}\nprompts: [{text: a, sead: 3}]\n"
    )
    found = problems(path)
    for wanted in (
        ":1: model.revison: unknown key; did you mean revision?",
        ":2: guidence: unknown key; did you mean parameters.guidance_scale?",
        ":3: outputdir: unknown key; did you mean output?",
        ":4: height: unknown key; did you mean parameters.height?",
        ":5: strategy.ulyses: unknown key; known keys: kind",
        ":6: prompts[0].text: unknown key; did you mean prompt?",
        ":6: prompts[0].sead: unknown key; did you mean seed?",
    ):
        assert wanted in found


@pytest.mark.parametrize("key", ["file", "style", "notes", "device"])
def test_nothing_is_proposed_that_is_not_near(manifest: Write, key: str) -> None:
    (found,) = problems(manifest(f"model: demo\nprompts: [{{prompt: a, {key}: 17}}]"))
    assert re.search(f"{key}: unknown key; known keys: [a-z_, ]+; if the line", found)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ulysses_degree: 2", "its place is strategy: {kind: context_parallel, ulysses_degree: …}"),
        ("degree: 2", "its place is strategy: {kind: tensor_parallel, degree: …}"),
        ("max_memory: {cpu: 1GB}", "its place is strategy: {kind: device_map, max_memory: …}"),
        ("ulyses_degree: 2", "did you mean strategy: {kind: context_parallel, ulysses_degree: …}?"),
        ("kind: auto", "its place is strategy.kind"),
        ("revision: x", "its place is model.revision"),
        ("file: a.txt", "its place is prompts.file"),
        ("output: {steps: 3}", "its place is parameters.num_inference_steps"),
        ("output: {height: 3}", "its place is parameters.height"),
        ("output: {seed: 3}", "its place is seed, at the top level"),
        ("strategy: {kind: data_parallel, degree: 2}", "strategy: {kind: tensor_parallel, degree"),
        ("strategy: {kind: context_parallel, steps: 3}", "parameters.num_inference_steps"),
    ],
)
def test_keys_at_the_wrong_level_come_with_their_place(
    manifest: Write, text: str, wanted: str
) -> None:
    (found,) = problems(manifest(f"model: demo\n{text}\nprompts: [a]"))
    assert "unknown key; " in found
    assert wanted in found


def test_a_prompt_with_a_key_of_the_manifest(manifest: Write) -> None:
    (found,) = problems(manifest("model: demo\nprompts: [{prompt: a, strategy: auto}]"))
    assert found.endswith(
        "prompts[0].strategy: unknown key; its place is strategy, at the top level"
    )


def test_numbers_in_quotes_should_leave_them_out(manifest: Write) -> None:
    for text in ('seed: "7"', 'seed: {fixed: "7"}', 'batch_size: "4"', 'stop_grace_s: "2.5"'):
        (found,) = problems(manifest(f"model: demo\n{text}\nprompts: [a]"))
        assert re.search(r'"[0-9.]+" must be a (whole )?number; leave the quotes out$', found)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("negative_prompt: [a, b]", 'negative_prompt must be one text, in quotes, not ["a", "b"]'),
        ("negative_prompt: no", "negative_prompt must be one text, in quotes, not false"),
        ("prompt_2: 3", "prompt_2 must be one text, in quotes, not 3"),
        ("negative_prompt_embeds: [1]", "is set by the runner, from the texts; leave it out"),
        ("prompt_attention_mask: [1]", "is set by the runner, from the texts; leave it out"),
    ],
)
def test_texts_are_texts(manifest: Write, text: str, wanted: str) -> None:
    for place in (
        f"parameters: {{{text}}}\nprompts: [a]",
        f"prompts: [{{prompt: a, parameters: {{{text}}}}}]",
    ):
        (found,) = problems(manifest(f"model: demo\n{place}"))
        assert wanted in found


# A list begins a line below its key, and an alias stands where its anchor is.
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("prompt:\n  - a\n", ":2: prompt: unknown key; did you mean prompts?"),
        ("guidence:\n\n  - a\n", ":2: guidence: unknown key; did you mean parameters.guid"),
        ("seed:\n  - 1\n", ":2: seed: must be a whole number"),
        ("parameters:\n  - 1\n", ":2: parameters: must be a mapping of keys to values"),
        ("parameters:\n  prompt:\n    - a\n", ":3: parameters: prompt is set by the runner"),
        ("strategy:\n  ulysses_degree: 2\n", ":2: strategy: must name its kind"),
        ("output:\n  title:\n    a: 1\n", ":3: output.title: unknown key; known keys: dir"),
        ("output:\n  dir:\n    - a\n", ":3: output.dir: must be text"),
        ("versions: &v {a: b}\nuse: *v\n", ":3: use: unknown key"),
        ("output: &o {dir: o}\nmodel:\n  id: demo\n  <<: *o\n", ":2: model.dir: unknown key"),
    ],
)
def test_a_fault_names_the_line_of_the_key(manifest: Write, text: str, wanted: str) -> None:
    model = "" if "model:" in text else "\nmodel: demo"
    (found,) = problems(manifest(f"# a job\n{text}prompts: [a]{model}"))
    assert found.startswith(wanted)


def test_a_line_end_in_a_value_does_not_split_the_message(manifest: Write) -> None:
    path = manifest('model: demo\n"a\\nb": 1\ndtype: "x\\ny"\nprompts: ["a", "\\n"]')
    with pytest.raises(ManifestError) as caught:
        load(path, ["seed=x\n"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(r"--set seed=x\n: seed: ")
    assert lines[1].startswith(rf"{path}:2: a\nb: unknown key")
    assert lines[2].startswith(rf"{path}:3: dtype: x\ny: not a dtype")
    assert lines[3].endswith(r"'\n': is blank")


# Case 6.
@pytest.mark.parametrize(
    "seed", ["-1", "18446744073709551616", "1.5", "true", "1e6", "010", "0x1F"]
)
def test_seeds_out_of_range_or_form_are_refused(manifest: Write, seed: str) -> None:
    for text in (f"seed: {seed}", f"seed: {{fixed: {seed}}}"):
        (found,) = problems(manifest(f"model: demo\n{text}\nprompts: [a]"))
        assert found.startswith(f":2: seed{'.fixed' if 'fixed' in text else ''}: {seed}: must be")


# Case 41.
@pytest.mark.parametrize("dtype", ["flaot16", "float8", "16", "yes", "null"])
def test_unknown_dtypes_are_refused_with_the_list(manifest: Write, dtype: str) -> None:
    (found,) = problems(manifest(f"model: demo\ndtype: {dtype}\nprompts: [a]"))
    assert found.startswith(":2: dtype: ")
    assert "use one of float32, fp32, float16, fp16, half, bfloat16, bf16" in found


@pytest.mark.parametrize("dtype", ["fp16", "torch.float16", "Float16", "half", "TORCH.HALF"])
def test_dtypes_by_any_of_their_names(manifest: Write, dtype: str) -> None:
    assert load(manifest(f"model: demo\ndtype: {dtype}\nprompts: [a]")).manifest.dtype == "float16"


# Case 62.
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("prompts: []", "prompts: must not be empty"),
        ("prompts: ['  ']", "prompts[0]: '  ': is blank"),
        ("prompts: a cat", "prompts: a cat: must be a list of prompts"),
        ("prompts:", "prompts: nothing: must be a list of prompts"),
    ],
)
def test_no_prompts_is_an_error(manifest: Write, text: str, wanted: str) -> None:
    found = problems(manifest(f"model: demo\n{text}"))
    assert len(found) == 1
    assert wanted.split(": ")[0] in found[0]
    assert wanted.split(": ")[-1] in found[0]


@pytest.mark.parametrize(
    "name",
    [
        "prompt",
        "generator",
        "output_type",
        "latents",
        "prompt_embeds",
        "callback_on_step_end",
        "seed",
    ],
)
def test_parameters_that_the_runner_sets_are_refused(manifest: Write, name: str) -> None:
    (found,) = problems(manifest(f"model: demo\nparameters: {{{name}: 1}}\nprompts: [a]"))
    assert f"{name} is set by the runner" in found


@pytest.mark.parametrize("value", ["0", "-8", "1.5", "true", "'64'"])
def test_counts_are_whole_numbers_from_one(manifest: Write, value: str) -> None:
    (found,) = problems(manifest(f"model: demo\nparameters: {{height: {value}}}\nprompts: [a]"))
    assert "height must be a whole number, 1 or more" in found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "parameters: {guidance_scale: 1.0e+999}",
            "parameters.guidance_scale: 1.0e+999: a number that is not finite",
        ),
        ("stop_grace_s: 1.0e+999", "stop_grace_s: 1.0e+999: must be a number"),
        ("parameters: {num_images_per_prompt: 99999999999}", "must be 100000 at most"),
        ("parameters: {num_inference_steps: 999999}", "must be 100000 at most, not 999999"),
        ("parameters: {height: 1000000}", "height must be 100000 at most"),
        ("parameters: {eta: 1.0e+39}", "eta must be within ±3.4e+38, not 1e+39"),
        ("parameters: {sigmas: [1.0, {a: -1.0e+300}]}", "sigmas must be within ±3.4e+38"),
        ("prompts: {file: 'a\\0b'}", "prompts.file"),
    ],
)
def test_numbers_and_paths_that_no_machine_takes(manifest: Write, text: str, wanted: str) -> None:
    prompts = "" if "prompts:" in text else "\nprompts: [a]"
    (found,) = problems(manifest(f"model: demo\n{text}{prompts}".replace("'a\\0b'", '"a\\0b"')))
    assert wanted in found
    for name in ("~nobody-here/x", "./" + "x" * 300):
        assert "model.id" in problems(manifest(f"model: {name}\nprompts: [a]"))[0]


def test_every_problem_at_once_in_order_of_lines(manifest: Write) -> None:
    found = problems(
        manifest("dtype: x\nmodel: demo\nbatch_size: 0\nprompts: [no, {prompt: a, seed: -1}]")
    )
    assert [line.split(":")[1] for line in found] == ["1", "3", "4", "4"]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", ": the file is empty"),
        (b"- a\n", ":1: a manifest is a mapping"),
        (b"model: demo\n--- \nmodel: x", ":2: a second document"),
        (b"model: 'demo\n", "not YAML"),
        (b"model: demo\nprompts: [caf\xe9]", ":2: not UTF-8 (byte 0xe9)"),
        (b"model: !!python/object:os.system x\nprompts: [a]", ":1: the tag"),
        (b"model: demo\nprompts: [a\x00b]", FORBIDDEN.format(r"\x00")),
        (b'model: demo\nprompts: ["\\ud83e\\udd8a"]', ":2: not YAML: .*write the character itself"),
        (b"1: x\nmodel: demo\nprompts: [a]", ":1: the key 1 is not text"),
    ],
)
def test_files_that_are_no_manifest(tmp_path: Path, data: bytes, wanted: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    assert re.search(re.escape(wanted).replace(r"\.\*", ".*"), problems(path)[0])


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == [": No such file or directory"]
    assert problems(tmp_path) == [": Is a directory"]


def test_byte_order_mark_and_odd_prompts_survive(tmp_path: Path) -> None:
    prompts = ["x" * 2000, "🦊" * 100, "f/2.8 ../../etc", "a\tb\nc", 'a "quoted": thing', " lead"]
    path = tmp_path / "job.yaml"
    written = json.dumps({"model": "demo", "prompts": prompts}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + written.encode())
    assert [item.prompt for item in load(path).prompts] == prompts


def test_set_goes_over_the_file(manifest: Write) -> None:
    path = manifest("model: demo\nseed: 1\nparameters: {height: 64}\nprompts: [a]")
    changed = load(
        path,
        ["parameters.width=32", "seed=9", "model.variant=fp16", "strategy.kind=data_parallel"],
    ).manifest
    assert changed.parameters == {"height": 64, "width": 32}
    assert changed.seed == SeedSpec(start=9)
    assert (changed.model.id, changed.model.variant) == ("demo", "fp16")
    assert "--set batch_size=x" in str(problems(path, "batch_size=x"))
    assert "must look like key=value" in str(problems(path, "batch_size"))
    assert "--set hieght=3: hieght: unknown key" in str(problems(path, "hieght=3"))


@pytest.mark.parametrize(
    ("assignment", "wanted"),
    [
        ("parameters.num_inference_steps=abc", ": parameters: num_inference_steps must be"),
        ("parameters.num_inference_steps=0", ": parameters: num_inference_steps must be"),
        ("parameters.prompt=x", ": parameters: prompt is set by the runner"),
        ("sweep.product.height=[x]", ": sweep.product: height must be a whole number"),
        ("prompts.columns.generator=x", ": prompts.columns: generator is set by the runner"),
        ("output.name={idx}", """; write --set 'output.name="{idx}"'"""),
        ("output=7", """YAML reads it as a number, not as text; write --set 'output="7"'"""),
        ("batch_size=many", ": batch_size: many: must be a whole number, or auto"),
        ("batch_size=0", ": batch_size: 0: must be 1 or more, or auto"),
    ],
)
def test_set_is_to_blame_for_what_it_sets(manifest: Write, assignment: str, wanted: str) -> None:
    text = "model: demo\nparameters: {height: 64}\nsweep: {product: {width: [64]}}\n"
    path = manifest(f"{text}prompts: {{file: list.csv, columns: {{id: key}}}}")
    (found,) = problems(path, assignment)
    assert found.startswith(f"--set {assignment}: ")
    assert wanted in found


def test_a_fault_in_a_mapping_names_the_line_of_its_key(manifest: Write) -> None:
    text = "model: demo\nparameters:\n  height: 64\n  num_inference_steps: abc\nprompts: [a]"
    assert problems(manifest(text))[0].startswith(":4: parameters: num_inference_steps must")
    text = "model: demo\noutput:\n  name: {id}\nprompts: [a]"
    assert problems(manifest(text))[0].endswith('not as text; quote it: "{id}"')


def test_a_file_that_is_missing_has_a_near_name(manifest: Write) -> None:
    path = manifest("model: demo\nprompts: [a]", "near.yaml")
    wanted = f": No such file or directory; did you mean {path}?"
    with pytest.raises(ManifestError) as caught:
        load(path.with_name("near.ymal"))
    assert str(caught.value).endswith(wanted)


def test_folders_in_a_folder_of_texts_are_named(manifest: Write) -> None:
    path = manifest("model: demo\nprompts: {file: texts}")
    for name in ("texts/one.txt", "texts/sub/three.txt", "texts/images/x.png"):
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_text("a cat")
    loaded = load(path)
    assert len(loaded.prompts) == 1
    (remark,) = loaded.remarks
    assert "the .txt files in its folders are left out (sub); " in str(remark)


def test_local_models_and_prompt_files_are_found_from_the_manifest(
    manifest: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "list.txt").write_text("a cat\na dog\n")
    path = manifest("model: ./model\nprompts: {file: list.txt}")
    monkeypatch.chdir("/")
    loaded = load(path)
    assert loaded.manifest.model.id == str(tmp_path / "model")
    assert [item.prompt for item in loaded.prompts] == ["a cat", "a dog"]
    missing = manifest("model: demo\nprompts:\n  file: nope.txt")
    assert problems(missing) == [f":3: no prompt file {tmp_path / 'nope.txt'}"]


texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
items = st.one_of(
    texts,
    st.fixed_dictionaries(
        {"prompt": texts},
        optional={
            "seed": st.integers(0, 2**63 - 1),
            "parameters": st.dictionaries(
                st.sampled_from(["clip_skip", "true_cfg_scale"]),
                texts | st.floats(-3e38, 3e38) | st.booleans(),
            ),
        },
    ),
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(items, min_size=1, max_size=4))
def test_a_manifest_as_run_reads_back_the_same(tmp_path: Path, prompts: list[object]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"model": "demo", "prompts": prompts}), encoding="utf-8")
    loaded = parse(path)[0]
    resolved = Resolved(
        seed=SeedSpec(start=5), revision=None, versions={"runner": "1"}, strategy=loaded.strategy
    )
    before = fill(loaded, resolved)
    path.write_text(dump(before), encoding="utf-8")
    assert parse(path)[0] == before


# Case 61: the same with PyYAML's slow loader, where the C one is not there.
def test_both_loaders_find_the_same(manifest: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "model: demo\nseed: 010\nguidence: 3\nseed: 4\nprompts:\n- no\n- {text: a}\n- &a x\n- *a\n"
    )
    path = manifest(text)
    fast = problems(path)
    monkeypatch.setattr("runner.manifest.yaml_tree._Loader", yaml.SafeLoader)
    assert problems(path) == fast
    assert len(fast) >= 5
    assert document("a: [1, 2]", "x")[0].plain() == {"a": [1, 2]}
    assert problems(manifest("a: 1\nb: \x1b")) == [FORBIDDEN.format(r"\x1b")]
    assert manifest_module.DTYPES["half"] == "float16"
