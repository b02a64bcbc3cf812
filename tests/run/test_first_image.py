"""A pipeline that no test proves right makes its first image as plain diffusers does; or none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.bench import PROMPTS, Bench
from support.launch import pixels, summary
from support.launches import Launcher

from runner.errors import ExitCode, ModelError
from runner.model import proven
from runner.prepare import proof
from runner.render import load
from runner.render.pipeline import Pipeline
from runner.render.results import DroppedError


@pytest.fixture
def plain_loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """No pipeline is proven; the folders that plain diffusers loads."""
    loads: list[Path] = []
    real = load.load_plain

    def load_plain(manifest: Any, folder: Path, *given: Any) -> Any:
        loads.append(folder)
        return real(manifest, folder, *given)

    monkeypatch.setattr(proof, "is_proven", lambda *_: False)
    monkeypatch.setattr(load, "load_plain", load_plain)
    return loads


def test_an_unproven_pipeline_is_compared_once_a_folder(
    bench: Bench, plain_loads: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("no test proves FluxPipeline right" in line for line in bench.plan()["remarks"])
    assert bench.run() is ExitCode.COMPLETE
    assert "no test proves FluxPipeline right with data_parallel" in capsys.readouterr().err
    assert len(plain_loads) == 1
    bench.values["prompts"] = [*PROMPTS, "one more"]
    assert bench.run() is ExitCode.COMPLETE
    assert len(plain_loads) == 1  # it was right on this folder
    bench.values["dtype"] = "bfloat16"
    bench.run(regenerate=True)
    assert len(plain_loads) == 2


def test_a_proven_pipeline_runs_in_silence(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert proven.is_proven("FluxPipeline", "data_parallel")
    assert not proven.is_proven("NoSuchPipeline", "data_parallel")
    assert not proven.is_proven(["its_own", "Code"], "data_parallel")
    assert bench.plan()["remarks"] == []
    bench.run()
    assert "no test proves" not in capsys.readouterr().err


def spoil(monkeypatch: pytest.MonkeyPatch, calls: int, by: float) -> None:
    """From so many calls on, images are off by so much."""
    real, made = Pipeline.images, []

    def images(self: Pipeline, tasks: Any) -> Any:
        made.append(tasks)
        found = real(self, tasks)
        return (found + by).clamp(0, 1) if len(made) > calls else found

    monkeypatch.setattr(Pipeline, "images", images)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (0, "it differs from the image of plain diffusers"),
        (1, "another image when it is made again"),
    ],
)
@pytest.mark.usefixtures("plain_loads")
def test_a_wrong_first_image_is_refused_before_any_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, calls: int, words: str
) -> None:
    spoil(monkeypatch, calls, 0.02)
    with pytest.raises(ModelError, match=words):
        bench.run()
    assert pixels(bench.output) == {}


def test_what_diffusers_itself_cannot_make_is_refused(
    bench: Bench, plain_loads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> torch.Tensor:
        raise ValueError("no such step")

    monkeypatch.setattr("diffusers.FluxPipeline.prepare_latents", fail)
    with pytest.raises(ModelError, match=r"job.yaml:1: .*cannot make this image: ValueError: no"):
        bench.run()
    assert len(plain_loads) == 1


def test_replicas_wait_for_each_others_verdict(
    ranks: Launcher, manifest: Any, flux: Path, tmp_path: Path
) -> None:
    """Rank 1 alone makes wrong images: nobody writes one, and the reason is printed once."""
    parameters = {"height": 32, "width": 32, "num_inference_steps": 2, "max_sequence_length": 16}
    path = manifest(
        model=str(flux),
        seed=3,
        output=str(tmp_path / "out"),
        parameters=parameters,
        prompts=["a", "b", "c", "d"],
    )
    patches = ["support.patches:unproven", "support.patches:spoil_on_last_rank"]
    ended = ranks(2, path, patches=[*patches, "support.patches:refused_last"])
    assert ended.codes == [2, 2], ended.words
    assert ended.words.count("it differs from the image of plain diffusers") == 1
    assert pixels(tmp_path / "out") == {}
    ended = ranks(2, path, patches=patches[:1])
    assert ended.codes == [0, 0], ended.words
    assert summary(tmp_path / "out")["outcome"] == "complete"


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (DroppedError(), ExitCode.INCOMPLETE, "interrupted"),
        (torch.OutOfMemoryError("no room"), ExitCode.FAILED, "failed"),
    ],
)
def test_a_stop_or_missing_memory_is_no_verdict(
    bench: Bench,
    plain_loads: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: ExitCode,
    outcome: str,
) -> None:
    """The job ends as it would later; the next launch compares."""

    def images(self: Pipeline, tasks: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "images", images)
        assert bench.run() is code
    assert summary(bench.output)["outcome"] == outcome
    assert bench.run() is ExitCode.COMPLETE
    assert len(plain_loads) == 2
