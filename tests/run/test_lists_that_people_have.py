"""Lists in the shape of well-known ones (tests/data/lists), each as a job: names and metadata are
those that their evaluators look for."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.bench import Bench
from support.jobs import Job
from support.launch import lines

from runner.errors import ExitCode
from runner.render.fake import FakePipeline

LISTS = ROOT / "tests/data/lists"
GENEVAL = {"name": "{prompt_index:05}/samples/{variation:04}"}


@pytest.fixture
def made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a job with a list, without a model: images by name, with their metadata."""
    monkeypatch.setattr("runner.render.load.load", lambda *_, stop, **__: FakePipeline(stop))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)

    def make(prompts: dict[str, Any], **values: Any) -> dict[str, dict[str, Any]]:
        bench.values["parameters"] = {}
        bench.values.update(prompts=prompts | {"file": str(LISTS / prompts["file"])}, **values)
        assert bench.run() is ExitCode.COMPLETE
        found = {line["file_name"]: line for line in lines(bench.output / "metadata.jsonl")}
        assert all((bench.output / name).is_file() for name in found)
        return found

    return make


def script(name: str) -> str:
    """A program of the documents."""
    text = (ROOT / "docs/output.md").read_text()
    return re.findall(rf"```python {name}\n(.*?)```", text, re.DOTALL)[0]


def test_geneval(made: Any, bench: Bench) -> None:
    found = made({"file": "geneval.jsonl"}, variations=4, output=GENEVAL)
    assert len(found) == 20
    exec(script("geneval.py").replace("outputs/geneval", str(bench.output)))
    rows = [json.loads(line) for line in (LISTS / "geneval.jsonl").read_text().splitlines()]
    # What evaluate_images.py of GenEval looks for.
    folders = sorted(path for path in bench.output.iterdir() if path.name.isdigit())
    assert [path.name for path in folders] == [f"{number:05}" for number in range(5)]
    for folder, row in zip(folders, rows, strict=True):
        assert json.loads((folder / "metadata.jsonl").read_text()) == row
        images = sorted(path.name for path in (folder / "samples").iterdir())
        assert images == ["0000.png", "0001.png", "0002.png", "0003.png"]
    assert bench.run() is ExitCode.COMPLETE  # the files of the evaluator are in nobody's way


def test_parti_prompts(made: Any) -> None:
    found = made({"file": "parti.tsv", "columns": {"prompt": "Prompt"}})
    prompts = [line["prompt"] for line in found.values()]
    assert prompts[1:] == ["an owl, and a fox on a chessboard", 'a sign that says "open late"']
    metas = [line["meta"] for line in found.values()]
    assert metas[1] == {"Category": "Animals", "Challenge": "Fine-grained Detail"}


def test_t2i_compbench(made: Any) -> None:
    """Its evaluators read the text and a number from the name."""
    found = made({"file": "t2i_compbench_color_val.txt"}, output={"name": "{prompt}_{index:06}"})
    assert next(iter(found)) == "a green bench and a blue bowl_000000.png"
    assert [name.rpartition("_")[0] for name in found] == [one["prompt"] for one in found.values()]


def test_drawbench(made: Any) -> None:
    found = made(
        {"file": "drawbench.csv", "columns": {"prompt": "Prompts"}},
        output={"name": "{Category}/{prompt_index:03}"},
    )
    assert [*found] == ["Colors/000.png", "Counting/001.png", "Text/002.png"]
    assert found["Text/002.png"]["prompt"] == 'A sign that says "Hello".'


def test_hpsv2(made: Any, bench: Bench) -> None:
    """A list for each style, and a folder for each; as JPEG."""
    bench.output = bench.output.parent / "hpsv2-paintings"
    found = made({"file": "hpsv2_paintings.json"}, output={"name": "paintings/{index:05}"})
    assert [*found][-1] == "paintings/00002.png"
    assert found["paintings/00002.png"]["prompt"] == "café at dawn"
    exec(script("jpegs.py").replace('"outputs', f'"{bench.output.parent}'))
    jpegs = sorted((bench.output.parent / "hpsv2" / "paintings").iterdir())
    assert [path.name for path in jpegs] == ["00000.jpg", "00001.jpg", "00002.jpg"]


def test_sd_scripts(made: Any) -> None:
    first, second = made({"file": "sd_scripts.txt", "format": "sd-scripts"}).values()
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["parameters"] == {
        "negative_prompt": "low quality, worst quality",
        "width": 64,
        "height": 96,
        "num_inference_steps": 3,
        "guidance_scale": 7.5,
    }
    assert second["prompt"] == "a cat on a wall, (white:1.2)"


def test_excel(made: Any) -> None:
    found = made(
        {"file": "excel.csv", "columns": {"prompt": "Beschreibung", "id": "Nr"}},
        output={"name": "{id:03}_{Titel}"},
    )
    assert [*found] == ["001_Fuchs.png", "002_Haus.png", "003_Schild.png"]
    assert found["001_Fuchs.png"]["prompt"] == "ein Fuchs\r\nim Schnee; ruhig"
    assert found["001_Fuchs.png"]["meta"] == {"Titel": "Fuchs", "Preis": "3,50"}
    assert found["002_Haus.png"]["meta"] == {"Titel": "Haus"}


def geneval(folder: Path, prompts: int) -> Path:
    """A list in GenEval's shape."""
    row = {"tag": "colors", "include": [{"class": "bench", "count": 1, "color": "red"}]}
    text = "".join(
        json.dumps({**row, "prompt": f"a photo of bench {number}"}) + "\n"
        for number in range(prompts)
    )
    (folder / "evaluation_metadata.jsonl").write_text(text)
    return folder / "evaluation_metadata.jsonl"


@pytest.mark.parametrize("prompts", [12, pytest.param(553, marks=pytest.mark.slow)])
def test_geneval_by_one_process_and_by_two(tmp_path: Path, prompts: int) -> None:
    job = Job(tmp_path, prompts={"file": str(geneval(tmp_path, prompts))}, variations=4)
    name = f"output.name='{GENEVAL['name']}'"
    found = []
    for processes in (1, 2):
        job.output = tmp_path / f"out{processes}"
        ended = job.run("--set", name, "--output", str(job.output), processes=processes)
        assert ended.code == 0, ended.err
        images = {line["file_name"]: line for line in job.metadata()}
        data = {name: (job.output / name).read_bytes() for name in images}
        found.append((images, data))
    assert len(found[0][0]) == 4 * prompts
    assert found[0] == found[1]
