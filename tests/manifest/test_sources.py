"""Lists of prompts that people have: tables, JSON, folders, data sets; columns and selections."""

import csv
import json
import os
import random
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_lists import fuzz
from support.sources import read, write

from runner.errors import InterruptedRunError, ManifestError
from runner.manifest.load import load
from runner.manifest.prompts import Prompt
from runner.plan import Plan

ROWS = [
    {
        "key": f"k{number}",
        "caption": f"a cat, number {number}\non a hill",
        "neg": "fog" * (number % 2),
    }
    for number in range(2500)
]
COLUMNS = {"prompt": "caption", "id": "key", "negative_prompt": "neg"}


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        read(path, **options)
    return str(caught.value)


def write_as(form: str, path: Path) -> Path:
    """ROWS in a format."""
    if form in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ROWS[0], delimiter="," if form == "csv" else "\t")
            writer.writeheader()
            writer.writerows(ROWS)
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=700)
    else:
        rows = [{name: value for name, value in row.items() if value} for row in ROWS]
        text = json.dumps(rows, indent=1) if form == "json" else "\n".join(map(json.dumps, rows))
        path.write_text(text)
    return path


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_all_formats_give_the_same_prompts(tmp_path: Path, form: str) -> None:
    prompts = read(write_as(form, tmp_path / f"list.{form}"), columns=COLUMNS)
    wanted = [
        Prompt(row["caption"], None, {"negative_prompt": "fog"} if row["neg"] else {}, row["key"])
        for row in ROWS
    ]
    assert list(prompts) == wanted
    places = random.Random(1).sample(range(len(ROWS)), 20)
    assert [prompts[place] for place in places] == [wanted[place] for place in places]
    assert [item.parameters for item in prompts.overrides()] == [item.parameters for item in wanted]


def test_odd_bytes(tmp_path: Path) -> None:
    """A small part of `make fuzz`."""
    found = fuzz(tmp_path, 500, seed=2)
    assert len(found) == 2 * 5  # each format read, and each refused


def test_a_folder_of_texts(tmp_path: Path) -> None:
    folder = tmp_path / "captions"
    folder.mkdir()
    write(folder / "b.txt", "\ufeffa fox\r\n")
    write(folder / "a.txt", "a cat\non a hill\n")
    write(folder / "a.png", b"\x89PNG")
    prompts = read(folder)
    assert list(prompts) == [Prompt("a cat\non a hill", id="a"), Prompt("a fox", id="b")]
    write(folder / "b.txt", "a dog")
    with pytest.raises(InterruptedRunError, match=r"captions/b.txt: not what it was"):
        prompts[1]


def test_a_data_set_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"Prompt": f"a cat {number}", "Category": "animals"} for number in range(1500)]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data/test.parquet")
    job = tmp_path / "job.yaml"
    spec = {"dataset": str(tmp_path / "data"), "split": "test", "columns": {"prompt": "Prompt"}}
    job.write_text(json.dumps({"model": "demo", "seed": 1, "prompts": spec}))
    prompts = load(job).prompts
    assert len(prompts) == 1500
    assert prompts[1400] == Prompt("a cat 1400", meta={"Category": "animals"})
    spec["split"] = "validation"
    job.write_text(json.dumps({"model": "demo", "seed": 1, "prompts": spec}))
    with pytest.raises(ManifestError, match="data: cannot be loaded: .*validation"):
        load(job)


def test_excel_writes_a_bom_semicolons_and_line_ends_in_cells(tmp_path: Path) -> None:
    data = '\ufeffid;prompt;seed;width;guidance_scale;note\r\n1;"a ""red""\r\nfox";7;64;3.5;x\r\n'
    data += "2;007;;;;\r\n;;;;;\r\n\r\n"
    first, second = read(write(tmp_path / "list.csv", data))
    parameters = {"width": 64, "guidance_scale": 3.5}
    assert first == Prompt('a "red"\r\nfox', 7, parameters, "1", {"note": "x"})
    assert second == Prompt("007", id="2")


def test_own_columns_in_full(tmp_path: Path) -> None:
    data = 'prompt,seeds,parameters,meta,tag,variations\n"a","[1,2]","{""height"": 64}",'
    data += '"{""a"": 1}",t,\nb,,,,,3\n'
    first, second = read(write(tmp_path / "list.csv", data))
    assert first == Prompt("a", None, {"height": 64}, None, {"a": 1, "tag": "t"}, (1, 2))
    assert second.parameters == {"num_images_per_prompt": 3}


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("id,text\n1,a\n", "no column is the prompt; there are id, text; write columns: {prom"),
        ("Prompts,Category\n", "no column is the prompt; .* write columns: {prompt: Prompts}"),
        ("prompt,seed\na,x\nb,y\nc,-1\n", r"list.csv:2: seed: 'x': must be a whole number"),
        ("prompt,seed\na,1.5\n", "list.csv:2: seed: .* whole number"),
        ("prompt,tag\na,b,c\n", r"list.csv:2: 3 cells, and the first row has 2; put cells that"),
        ('prompt,tag\na,b\n"x,b\n', "list.csv:3: a quote is not closed"),
        ('prompt,tag\n"a\n"b",b\n', r"list.csv:2: text after the closing quote of a cell"),
        ("prompt,prompt\na,b\n", "list.csv:1: two columns are named prompt; rename one"),
        (",\n1,2\n", "list.csv:1: no names of columns"),
        ("prompt,tag\na,b\n,c\n", "list.csv:3: prompt is missing"),
        (b"prompt\na\nb\xff\nc\xfe\n", r"list.csv:3: not UTF-8 \(byte 2 is 0xff\); save the file"),
        ("id;prompt\n1;K\u00fche\n".encode("cp1252"), "csv:2: not UTF-8 .* in Excel as CSV UTF-8"),
        ("prompt,tag\na,\x1b[31m\n", r"2: tag: the control character '\\x1b' at column 1"),
        ("prompt,parameters\na,{\n", "list.csv:2: parameters: {: must be JSON"),
        ("prompt,width,parameters\na,8,\"{\"\"width\"\": 9}\"\n", "width: given twice, also in"),
        ("prompt,promt\na,b\n", "promt: unknown; did you mean prompt"),
        ("prompt,steps\na,8\n", r"steps: unknown; did you mean num_inference_steps\?"),
        ("prompt,id\na,x\nb,y\nc,x\n", "list.csv:4: id: x: also at list.csv:2; give each"),
        (b"pr\xe9,prompt\n1,a\n", "csv:1: not UTF-8 .byte 3 is 0xe9.; .* in Excel as CSV UTF-8"),
        ("prompt,id\na,1\n".encode("utf-16-le"), r"list.csv:1: the control character '\\x00'"),
        ("sep=;\nprompt;id\na;1\n", "list.csv:1: sep= is a line for Excel alone; remove it"),
        ("a cat\na dog\n", "no column is the prompt; .* if each line is a prompt, add format: t"),
        ("id,prompt\n1,\n", "list.csv:2: prompt is missing; fill it in, or remove the row"),
        ("prompt,seeds\na,1\nb,'1'\n", r"list.csv:3: seeds: '1': must be JSON, as in \[7, 21\]"),
        ("", "no names of columns"),
        ("prompt\n", "list.csv: no prompts in it"),
        ("prompt;seed\n;4\n", "list.csv:2: prompt is missing; fill it in, or remove the row"),
        ("id,seed\n1,4\n", r"no column is the prompt; .* write columns: {prompt: NAME}"),
    ],
)  # fmt: skip
def test_bad_tables(tmp_path: Path, data: str | bytes, wanted: str) -> None:
    with pytest.raises(ManifestError, match=wanted):
        read(write(tmp_path / "list.csv", data))


def test_a_whole_number_as_tables_write_it(tmp_path: Path) -> None:
    """pandas has 7.0 for 7 where other cells of the column are empty."""
    pq.write_table(
        pa.table({"prompt": ["a", "b"], "id": [1.0, 2.0], "seed": [7.0, None]}),
        tmp_path / "list.parquet",
    )
    assert [*read(tmp_path / "list.parquet")] == [Prompt("a", 7, id="1"), Prompt("b", id="2")]
    path = write(tmp_path / "list.csv", "prompt,seed,width\na,7.0,512.0\nb,007,\n")
    assert [*read(path)] == [Prompt("a", 7, {"width": 512}), Prompt("b", 7)]
    path = write(tmp_path / "list.jsonl", '{"prompt": "a", "seed": 7.0, "guidance_scale": 3.0}')
    assert [*map(repr, read(path))] == [repr(Prompt("a", 7, {"guidance_scale": 3.0}))]
    path = write(tmp_path / "bars.csv", "prompt|id\na, b|x\n")
    assert [*read(path)] == [Prompt("a, b", id="x")]


def test_odd_tables_of_parquet(tmp_path: Path) -> None:
    def refused(table: pa.Table, **options: Any) -> str:
        pq.write_table(table, tmp_path / "list.parquet")
        return refusal(tmp_path / "list.parquet", **options)

    cells = [None, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"a\xff")]
    broken = pa.Array.from_buffers(pa.string(), 1, cells)
    words = refused(pa.table({"prompt": broken}))
    assert words == "list.parquet: row 1: prompt: not UTF-8 (byte 2 is 0xff)"
    infinite = pa.table({"prompt": ["a", "b"], "x": [1.0, float("inf")]})
    assert refused(infinite) == "list.parquet: row 2: x: inf: a number that is not finite"
    words = refused(pa.table({"prompt": [b"a"], "x": ["b"]}))
    assert "there are x; write columns: {prompt: x}; columns of bytes cannot be read: pr" in words
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    assert "two columns are named prompt; rename one" in refused(twice)
    wanted = "select.where: no column tga; there are prompt, tag"
    table = pa.table({"prompt": ["a"], "tag": ["b"]})
    assert wanted in refused(table, select={"where": {"tga": "b"}})
    pq.write_table(
        pa.table({"prompt": ["a", "b"], "parameters": [{"width": 8}, {"height": 8}]}),
        tmp_path / "list.parquet",
    )
    found = read(tmp_path / "list.parquet")
    assert [item.parameters for item in found] == [{"width": 8}, {"height": 8}]


def test_odd_lists_of_json(tmp_path: Path) -> None:
    path = write(tmp_path / "list.json", '[{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}]')
    words = "list.json:1: element 2: id: 1: also at list.json:1: element 1; give each"
    assert words in refusal(path)
    path = write(tmp_path / "list.json", "[" * 10**5 + "]" * 10**5)
    assert refusal(path).endswith("list.json: nested too deep: 60 levels at most")
    path = write(tmp_path / "list.jsonl", '{"prompt": "a"},\n')
    assert "column 16; write one value on each line, and nothing after it" in refusal(path)
    path = write(tmp_path / "list.jsonl", '{"prompt": "a", "x": ' + "9" * 5000 + "}")
    assert "a number of more than 4,300 digits; put it in quotes" in refusal(path)
    path = write(tmp_path / "list.jsonl", '{"prompt": "a", "tag": "b"}')
    words = refusal(path, select={"where": {"tga": "b"}})
    assert "select.where: no column tga; there are prompt, tag" in words


def test_what_is_no_text_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    write(folder / "a.txt", "a cat")
    (folder / "sub.txt").mkdir()
    assert [item.id for item in read(folder)] == ["a"]
    (folder / "gone.txt").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.txt")
    Path(os.fsdecode(bytes(folder) + b"/\xff.txt")).write_bytes(b"b")
    words = refusal(folder)
    assert "texts/gone.txt: No such file or directory" in words
    assert "texts/pipe.txt: not a file; remove it" in words
    assert "its name is not UTF-8; rename it" in words


def test_what_is_no_prompt_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "texts").mkdir()
    job = tmp_path / "job.yaml"
    for source, wanted in (
        ("{file: pipe.txt}", "job.yaml:2: .*pipe.txt: not a file"),
        ("{file: texts, format: csv}", "prompts.file: format is for a file, and texts is a folder"),
    ):
        job.write_text(f"model: demo\nprompts: {source}\n")
        with pytest.raises(ManifestError, match=wanted):
            load(job)


def test_equal_faults_of_rows_are_counted(tmp_path: Path) -> None:
    found = refusal(write(tmp_path / "a.csv", "prompt,seed\n" + "a,x\n" * 3 + "b,-1\n"))
    assert found.splitlines() == [
        "a.csv:2: seed: 'x': must be a whole number (and 2 more lines)",
        "a.csv:5: seed: -1: must be 0 or more",
    ]


def test_a_key_of_its_own_is_not_proposed_for_the_prompt(tmp_path: Path) -> None:
    data = '{"prompt": "a", "seed": 2}\n{"seed": 5}\n'
    with pytest.raises(ManifestError, match="jsonl:2: prompt is missing; fill it in, or remove"):
        read(write(tmp_path / "a.jsonl", data))
    with pytest.raises(ManifestError, match="jsonl:1: prompt is missing; write .*prompt: NAME"):
        read(write(tmp_path / "a.jsonl", '{"seed": 5, "id": "x"}\n'))


def test_what_is_no_column_is_refused_or_data(tmp_path: Path) -> None:
    path = write(tmp_path / "list.jsonl", '{"prompt": "a", "tag": "x", "width": 640, "b": null}')
    assert list(read(path)) == [Prompt("a", None, {"width": 640}, None, {"tag": "x"})]
    assert read(path, columns={"width": None})[0].meta == {"tag": "x", "width": 640}
    assert "tag: unknown, and extra: refuse" in refusal(path, extra="refuse")
    assert "columns.id: no column key; there are prompt, tag" in refusal(
        path, columns={"id": "key"}
    )
    other = write(tmp_path / "other.jsonl", '{"prompt": "a", "Prompt": "b"}')
    assert read(other, columns={"prompt": "Prompt"})[0] == Prompt("b", meta={"prompt": "a"})
    assert read(other, columns={"prompt": "prompt"})[0] == Prompt("a", meta={"Prompt": "b"})
    empty = write(tmp_path / "empty.csv", "prompt,key\na,\n")
    assert read(empty, columns={"id": "key"})[0] == Prompt("a")
    bad = write(tmp_path / "bad.csv", "caption,s\na,x\n")
    found = refusal(bad, columns={"prompt": "caption", "seed": "s"})
    assert found == "bad.csv:2: column s: seed: 'x': must be a whole number"


def test_selections(tmp_path: Path) -> None:
    rows = [f"p{number},{'even' if number % 2 == 0 else 'odd'},{number}" for number in range(1, 21)]
    path = write(tmp_path / "list.csv", "\n".join(["prompt,kind,number", *rows]))

    def chosen(**select: Any) -> list[int]:
        return [int(item.meta["number"]) for item in read(path, select=select)]

    assert chosen(first=3) == [1, 2, 3]
    assert chosen(rows="4-6") == [4, 5, 6]
    assert chosen(rows=7) == [7]
    assert chosen(where={"kind": "even"}, first=2) == [2, 4]
    assert chosen(where={"number": 5}) == [5]
    assert chosen(rows="11-20", where={"kind": "odd"}) == [11, 13, 15, 17, 19]
    sample = chosen(sample=5, seed=1)
    assert sample == chosen(sample=5, seed=1) == sorted(set(sample))
    assert len(sample) == 5
    assert sample != chosen(sample=5, seed=2)
    assert "select.sample: 21: there are 20 prompts" in refusal(path, select={"sample": 21})
    assert "select chooses none of its rows" in refusal(path, select={"where": {"kind": "x"}})


def test_a_row_that_is_not_selected_is_not_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "list.csv", "prompt,seed\na,x\nb,2\nc,y\n")
    assert [item.prompt for item in read(path, select={"rows": "2-2"})] == ["b"]


def test_several_sources_in_a_row(tmp_path: Path) -> None:
    write(tmp_path / "one.txt", "b\nc\n")
    write(tmp_path / "two.csv", "prompt,seed\nd,7\ne,\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: demo\nseed: 1\nprompts:\n  - a\n  - {file: one.txt}\n"
        "  - {prompt: x, id: x}\n  - {file: two.csv}\n  - last\n"
    )
    loaded = load(job)
    plan = Plan(loaded.manifest, loaded.prompts, loaded.root)
    assert [task.prompt for task in plan.tasks()] == ["a", "b", "c", "x", "d", "e", "last"]
    assert [plan.task(index).prompt for index in range(7)] == ["a", "b", "c", "x", "d", "e", "last"]
    assert [task.seed for task in plan.tasks()] == [1, 2, 3, 4, 7, 6, 7]
    places = [plan.where(index) for index in range(7)]
    assert places[2].endswith("one.txt:2")
    assert places[3] == f"{job}:6: prompts[2]"
    assert places[4].endswith("two.csv:2")
    assert places[6] == f"{job}:8: prompts[4]"
    sources = [item.file for item in loaded.manifest.prompts if hasattr(item, "file")]
    assert sources == ["one.txt", "two.csv"]


def test_ids_may_repeat_only_where_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "list.csv", "prompt,id\na,x\nb,x\n")
    assert "id: x: also at list.csv:2; give each prompt its own; in a file they may" in refusal(
        path
    )
    assert [item.id for item in read(path, repeat_ids=True)] == ["x", "x"]
    job = tmp_path / "job.yaml"
    job.write_text("model: demo\nprompts:\n- {prompt: a, id: x}\n- {prompt: b, id: x}\n")
    with pytest.raises(ManifestError, match=r"job.yaml:4: prompts\[1\]: id: x: also at .*:3"):
        load(job)


# Case 26.
@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.txt", '--prompt "a cat" --steps 10', "--prompt is a flag of another tool; write param"),
        (
            "a.txt",
            "a\n1girl --n lowres --w 832",
            "a.txt:2: --n is a flag of sd-scripts; add f",
        ),
        (
            "a.txt",
            "a <lora:style:0.8> cat",
            "<lora:style:0.8> would load nothing here; name it under",
        ),
        ("a.txt", "prompt,seed\na,1", "a.txt:1: looks like csv, not like text; name the file .csv"),
        ("a.txt", '{"prompt": "a"}', "a.txt:1: looks like jsonl, not like text"),
        ("a.jsonl", '[\n {"prompt": "a"}\n]', "a.jsonl:1: a JSON list, .* name the file .json"),
        ("a.jsonl", '{\n "prompt": "a"\n}', "a.jsonl:1: an object over several lines"),
        ("a.json", '{"prompt": "a"}', "a.json: not a list; write"),
        ("a.json", '[\n"a",\n"b"\n"c"]', "a.json:4: not JSON"),
    ],
)
def test_lines_of_other_tools(tmp_path: Path, name: str, data: str, wanted: str) -> None:
    with pytest.raises(ManifestError, match=wanted):
        read(write(tmp_path / name, data))


def test_a_line_may_be_text_whatever_it_looks_like(tmp_path: Path) -> None:
    data = "prompt, seed\na cat --steps 10\n<lora:x:1>"
    assert len(read(write(tmp_path / "a.txt", data), format="text")) == 3
    plain = "a cat -- a dog\n[red] cat\na caption, the text, a very long prompt of a kind\n<3"
    assert len(read(write(tmp_path / "b.txt", plain))) == 4


def test_lines_of_sd_scripts(tmp_path: Path) -> None:
    data = (
        "# a comment\n\n1girl, best --n low quality, bad --w 832 --h 1216 --d 7 --s 28 --l 7.5\n"
        "a cat --l 1 --g .5 --d 9223372036854775807\nplain\n"
    )
    first, second, third = read(write(tmp_path / "a.txt", data), format="sd-scripts")
    size = {"width": 832, "height": 1216, "num_inference_steps": 28, "guidance_scale": 7.5}
    assert first == Prompt("1girl, best", 7, {"negative_prompt": "low quality, bad", **size})
    assert second == Prompt("a cat", 2**63 - 1, {"true_cfg_scale": 1, "guidance_scale": 0.5})
    assert third == Prompt("plain")
    for line, wanted in (
        ("a --ss euler", "--ss: cannot be read here; known are --n, --w"),
        ("a --w x", "--w x: must be a whole number, 0 or more"),
        ("a --d -1", "--d -1: must be a whole number, 0 or more"),
        ("a <lora:x:1> --w 8", "<lora:x:1> would load nothing here; name it under"),
        ("a --w 8 --w 9", "--w: given twice"),
        ("--n low", "is blank"),
    ):
        assert wanted in refusal(write(tmp_path / "b.txt", line), format="sd-scripts")


def test_what_is_wrong_with_a_whole_source_names_the_manifest(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "prompt\n")
    path = write(tmp_path / "job.yaml", "model: demo\nprompts:\n- a\n- file: list.csv\n")
    with pytest.raises(ManifestError, match=r"job.yaml:4: .*list.csv: no prompts in it"):
        load(path)
    write(tmp_path / "list.csv", "prompt,tag\na,b\n,c\n")
    with pytest.raises(ManifestError, match=r"list.csv:3: prompt is missing"):
        load(path)
