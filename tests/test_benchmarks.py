"""Benchmarks refuse bad arguments in a line, before anything runs; what they measure is no test."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NO_PROGRAMS = {"arguments.py", "contest.py", "peak_memory.py"}  # the last takes the runner's own


def stopped(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a benchmark that ends with its arguments."""
    monkeypatch.setattr(sys, "argv", [name, *words])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", [*sys.path])  # some add to it
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    "name", sorted({path.name for path in BENCHMARKS.glob("*.py")} - NO_PROGRAMS)
)
def test_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = stopped(name, ["--help"], monkeypatch, capsys)
    assert code == 0
    assert out.startswith(f"usage: {name}")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("throughput.py --images 0", "0: not a whole number from 1 to 400"),
        ("throughput.py --images 512", "512: not a whole number from 1 to 400"),
        ("throughput.py --images 1", "--images 1: fewer than the 2 processes"),
        ("throughput.py --runs 0", "0: not a whole number from 1 to 1000000"),
        ("throughput.py --steps -1", "-1: not a whole number from 1 to 1000000"),
        ("throughput.py --processes 1e1", "1e1: not a whole number from 1 to 1024"),
        ("throughput.py --batch-size abc", "abc: not a whole number from 1 to 1000000"),
        ("throughput.py --json {folder}", "{folder}: a folder"),
        ("startup.py --runs 0", "0: not a whole number from 1 to 1000000"),
        ("identity.py --gib 0", "0: not a whole number from 1 to 1000"),
        ("compiled.py --runs 0", "0: not a whole number from 1 to 1000000"),
        ("png_level.py --images 401", "401: not a whole number from 1 to 400"),
        ("steady_memory.py --images 20", "20: not a whole number from 200 to 3968"),
        ("steady_memory.py --images 5000", "5000: not a whole number from 200 to 3968"),
        ("slow_replica.py --images 1", "1: not a whole number from 8 to 1000000"),
        ("slow_replica.py --runs 0", "0: not a whole number from 1 to 1000000"),
        ("slow_replica.py --slowness 0.5", "0.5: not a number from 1 to 1000"),
        ("monitoring.py --images 8", "8: not a whole number from 16 to 1000000"),
        ("simulate.py --replicas 0", "0: not a whole number from 1 to 1000000"),
        ("simulate.py --images 0", "0: not a whole number from 1 to 1000000"),
        ("simulate.py --slow 2", "2: not a number from 0 to 1"),
        ("simulate.py --slowness nan", "nan: not a number from 1 to 1000"),
        ("scale.py --images 1000 0", "0: not a whole number from 10 to 10000000"),
        ("scale.py --folder {folder}/none", "{folder}/none: no folder"),
        ("meter.py {folder}/none runner", "{folder}/none: no folder"),
        ("gpu_bench.py --images 512", "512: not a whole number from 1 to 400"),
        ("gpu_check.py --size 0", "0: not a whole number from 16 to 8192"),
        ("load_memory.py --ranks 0", "0: not a whole number from 1 to 1024"),
        ("baselines.py one m job.json out", "job.json: no file"),
        ("baselines.py bare m {file} out --batch 0", "0: not a whole number from 1"),
        ("bare_image.py", "required: path"),
    ],
)
def test_bad_arguments(
    line: str,
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *words = line.format(folder=tmp_path, file=__file__).split()
    code, _, err = stopped(name, words, monkeypatch, capsys)
    assert code == 2
    assert wanted.format(folder=tmp_path) in err.splitlines()[-1]


def test_as_many_images_as_there_are_prompts_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    contest = runpy.run_path(str(BENCHMARKS / "contest.py"))
    most = contest["MOST_IMAGES"]
    assert len(contest["items"](most, [(8, 8)], {})) == most == 400
