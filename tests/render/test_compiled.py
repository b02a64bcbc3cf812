"""`compile: true`: the same images, code that is kept, and what it cannot be used with."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny
from support.launch import lines, stamps
from support.launches import Ended, Launcher

from runner.cli import main
from runner.errors import LaunchError, ModelError, StrategyError
from runner.launch.compiler import compile_cache
from runner.render import compiled
from runner.strategies import ParaAttention, StrategyBase, XDit

pytestmark = pytest.mark.slow

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")

# A batch of two, and one image of another size: two shapes, of which two ranks make one each.
PROMPTS = [
    {"prompt": "a red fox", "parameters": {"num_images_per_prompt": 2}},
    {"prompt": "the moon", "parameters": {"height": 32}},
]
SHAPES = 2


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of jobs, which keep their compiled code in one place; and a model of few kernels."""
    folder = tmp_path_factory.mktemp("compiled-jobs")
    tiny.flux(folder / "model", layers=1, double_layers=0)
    return folder


class Made:
    """What a job left: its words, float images and records."""

    def __init__(self, folder: Path, ended: Ended) -> None:
        self.out = folder / "out"
        self.words = ended.words
        self.floats = [np.load(path) for path in sorted(folder.glob("float-*.npy"))]
        self.records = lines(self.out / "metadata.jsonl")

    def counts(self, word: str) -> int:
        """The last that a rank said of it."""
        said = [line for line in self.words.splitlines() if line.startswith("blocks ")]
        return int(said[-1].split(f"{word} ")[1].split(",")[0])

    def difference(self, other: "Made") -> float:
        pairs = zip(self.floats, other.floats, strict=True)
        return max(float(np.abs(one - two).max()) for one, two in pairs)


def write(home: Path, name: str, **values: object) -> Path:
    (home / name).mkdir(exist_ok=True)
    path = home / name / "job.yaml"
    common = {"height": 64, "width": 64, "num_inference_steps": 2, "max_sequence_length": 16}
    job = {"model": str(home / "model"), "compile": True, "seed": 3, "batch_size": 2}
    job |= {"parameters": common, "prompts": PROMPTS, "output": str(home / name / "out")}
    path.write_text(json.dumps({**job, **values}))
    return path


def make(
    ranks: Launcher, home: Path, name: str, *patches: str, size: int = 1, **values: object
) -> Made:
    path = write(home, name, **values)
    names = ["keep_compiled_code", "keep_floats", *patches]
    patched = [f"support.patches:{patch}" for patch in names]
    ended = ranks(size, path, patches=patched, folder=path.parent, timeout_s=400)
    assert ended.codes == [0] * size, ended.words
    return Made(path.parent, ended)


@pytest.fixture(scope="module")
def plain(ranks: Launcher, home: Path) -> Made:
    return make(ranks, home, "plain", compile=False)


@pytest.fixture(scope="module")
def cold(ranks: Launcher, home: Path) -> Made:
    """By two ranks, which compile at the same time into an empty folder."""
    return make(ranks, home, "cold", size=2)


@needs_compiler
def test_code_is_kept_and_bits_are_those_of_any_number_of_processes(
    ranks: Launcher, home: Path, cold: Made
) -> None:
    assert cold.counts("compiled") > 0
    warm = make(ranks, home, "warm")
    assert warm.counts("kept") == warm.counts("blocks") == SHAPES
    assert warm.counts("compiled") == warm.counts("traced") == 0
    assert warm.difference(cold) == 0


@needs_compiler
def test_images_equal_those_made_without(cold: Made, plain: Made) -> None:
    assert cold.difference(plain) <= 1e-5
    assert {record["compiled"] for record in cold.records} == {True}
    assert not any("compiled" in record for record in plain.records)
    assert [one["fingerprint"] for one in cold.records] == [
        other["fingerprint"] for other in plain.records
    ]


@needs_compiler
def test_ranks_that_share_an_image(ranks: Launcher, home: Path, plain: Made) -> None:
    strategy = {"kind": "context_parallel", "ulysses_degree": 2}
    # The first prompt alone, one by one: a single shape.
    of = {"strategy": strategy, "batch_size": 1, "prompts": PROMPTS[:1]}
    made = make(ranks, home, "shared", size=2, **of)
    assert made.counts("blocks") > 0
    for one, other in zip(made.floats, plain.floats[:2], strict=True):
        assert np.abs(one - other).max() <= 1e-5


@needs_compiler
def test_a_folder_begun_with_it_is_finished_without(
    ranks: Launcher, home: Path, cold: Made
) -> None:
    job = write(home, "half")
    patches = ["support.patches:keep_compiled_code"]
    assert ranks(1, job, "--limit", 1, patches=patches, folder=job.parent).codes == [0]
    out = home / "half" / "out"
    before = stamps(out)
    write(home, "half", compile=False)
    assert ranks(1, job, patches=patches, folder=job.parent).codes == [0]
    assert stamps(out).items() >= before.items()
    found = [record.get("compiled", False) for record in lines(out / "metadata.jsonl")]
    assert found == [True, False, False]


@needs_compiler
def test_past_the_most_shapes_nothing_is_silent(ranks: Launcher, home: Path, cold: Made) -> None:
    made = make(ranks, home, "few", "few_shapes")
    assert "going on without" in made.words
    assert [record.get("compiled", False) for record in made.records] == [True, True, False]
    assert [record["degraded"] for record in made.records] == [[], [], ["not compiled"]]
    assert made.difference(cold) <= 1e-5


@needs_compiler
def test_blocks_that_do_not_compile_are_made_without(
    ranks: Launcher, home: Path, plain: Made
) -> None:
    path = write(home, "broken")
    ended = ranks(
        1,
        path,
        patches=["support.patches:keep_floats", "support.patches:break_compiler"],
        folder=path.parent,
        timeout_s=400,
    )
    assert ended.codes == [0], ended.words
    assert ended.words.count("going on without") == 1
    made = Made(path.parent, ended)
    assert made.difference(plain) == 0
    assert not any("compiled" in record for record in made.records)
    assert {tuple(record["degraded"]) for record in made.records} == {("not compiled",)}


def test_no_compiler(ranks: Launcher, home: Path) -> None:
    path = write(home, "lost")
    patches = ["support.patches:keep_compiled_code", "support.patches:lose_compilers"]
    ended = ranks(1, path, patches=patches, folder=path.parent)
    assert ended.codes == [2]
    assert "no C++ compiler here; install g++" in ended.words
    assert "Traceback" not in ended.words


def test_a_folder_for_code_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "code"))
    with pytest.raises(LaunchError, match="Not a directory; set TORCHINDUCTOR_CACHE_DIR"):
        compiled.check_machine(torch.device("cpu"))


def test_code_is_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.setenv(name, str(tmp_path / "named"))
    assert compile_cache() == tmp_path / "named"
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv(variable, str(tmp_path))
        folder = compile_cache()
        assert folder.parent == tmp_path / below / "runner" / "compiled"
        assert folder == compile_cache()
        assert os.environ[name] == str(folder)


REFUSED = [
    ({"strategy": {"kind": "device_map", "phases": True}}, "phases load the denoiser anew"),
    ({"on_out_of_memory": "offload"}, "use tile"),
    ({"model": "sd3"}, "SD3Transformer2DModel names no repeated blocks"),
]


@pytest.mark.parametrize(("values", "words"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_it_cannot_be_used_with(
    home: Path, capsys: pytest.CaptureFixture[str], values: dict[str, object], words: str
) -> None:
    if values.get("model") == "sd3":
        sd3 = tiny.stable_diffusion_3(home / "sd3")
        values = {"model": str(sd3), "parameters": {"height": 64, "width": 64}}
    path = write(home, "refused", **values)
    assert main(["plan", str(path)]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "compile: false" in told


def test_a_denoiser_in_parts(ranks: Launcher, home: Path) -> None:
    path = write(home, "parts", strategy={"kind": "device_map", "max_memory": {"cpu": "120KiB"}})
    patches = ["support.patches:keep_compiled_code"]
    ended = ranks(1, path, patches=patches, folder=path.parent)
    assert ended.codes == [2], ended.words
    assert "does not lie whole on one device" in ended.words
    assert "Traceback" not in ended.words


@pytest.mark.parametrize("strategy", [XDit(ulysses_degree=2), ParaAttention(ulysses_degree=2)])
def test_engines_are_not_compiled(home: Path, strategy: StrategyBase) -> None:
    job = SimpleNamespace(folder=home / "model")
    with pytest.raises(StrategyError, match="when compiled; use another strategy"):
        compiled.check(job, strategy, "fail")


def test_a_denoiser_that_turns_out_to_have_no_blocks() -> None:
    pipe = SimpleNamespace(transformer=torch.nn.Linear(2, 2))
    with pytest.raises(ModelError, match="Linear names no repeated blocks"):
        compiled.compile_blocks(pipe, "float32", 1)


def test_the_processes_of_a_node_share_its_cores_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    pipe = SimpleNamespace()
    for processes, threads in ((1, 12), (2, 8), (8, 2), (64, 1)):
        with inductor.patch(compile_threads=12):  # what torch has found, or a user has set
            compiled.compile_blocks(pipe, "float32", processes)
            assert inductor.compile_threads == threads
