"""Real launches: the same images from every layout, and after any process died."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import SUPPORT
from support.jobs import ended, running, wait_for
from support.launch import FAST, command_line, free_ports, launch, lines, pixels, stamps, summary
from support.launches import Launcher

PROMPTS: list[Any] = [
    "a red circle on a white background",
    "no",
    "x" * 2000,
    {"prompt": "🦊 ../../etc 'a': \"b\"\tc", "seed": 7},
    {"prompt": "green hills", "parameters": {"num_images_per_prompt": 2}},
    {"prompt": "the sea at night", "parameters": {"height": 96, "width": 160}},
    "a blue star",
]
IMAGES = 8


def job(folder: Path, name: str = "job.yaml", **values: Any) -> Path:
    base = {
        "model": "demo",
        "seed": 5,
        "parameters": {"num_inference_steps": 2},
        "prompts": PROMPTS,
    }
    path = folder / name
    path.write_text(yaml.safe_dump({**base, **values}), encoding="utf-8")
    return path


Launched = dict[str, tuple[int, str, Path]]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory, ranks: Launcher) -> Launched:
    """The same job by every launcher and by forked ranks, each into another folder."""
    home = tmp_path_factory.mktemp("layouts")
    one, three = job(home, "one.yaml"), job(home, "three.yaml", batch_size=3)
    accelerate = (
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"),
        *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
        f"--main_process_port={free_ports(1)[0]}",
    )
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "torchrun 4": {"nproc": 4},
        "accelerate 2": {"launcher": accelerate},
        "batch torchrun 2": {"nproc": 2},
    }
    done: Launched = {}
    for name, way in ways.items():
        output = home / name.replace(" ", "-")
        manifest = three if name.startswith("batch") else one
        end = launch([manifest, "--output", output], **way)
        done[name] = (end.returncode, end.stderr, output)
    for name, size in (("2", 2), ("3", 3), ("batch plain", 1), ("batch 4", 4)):
        output = home / name.replace(" ", "-")
        manifest = three if name.startswith("batch") else one
        forked = ranks(size, manifest, "--output", output)
        done[name] = (max(forked.codes, key=abs), forked.words, output)
    return done


# Case 1, invariant 2.
@pytest.mark.parametrize("batch", ["", "batch "])
def test_every_layout_makes_the_same_images(launched: Launched, batch: str) -> None:
    wanted = pixels(launched[batch + "plain"][2])
    assert sorted(wanted) == [f"{index:06d}.png" for index in range(IMAGES)]
    assert len(set(wanted.values())) == IMAGES
    for name, (code, said, output) in launched.items():
        if name.startswith("batch") == bool(batch):
            assert code == 0, said
            assert pixels(output) == wanted, name


# Case 14.
def test_every_name_has_its_own_prompt(launched: Launched) -> None:
    texts = [item["prompt"] if isinstance(item, dict) else item for item in PROMPTS]
    for name, (_, _, output) in launched.items():
        made = lines(output / "metadata.jsonl")
        assert [line["file_name"] for line in made] == [f"{i:06d}.png" for i in range(IMAGES)]
        assert [line["prompt"] for line in made] == [texts[line["prompt_index"]] for line in made]
        report = summary(output)
        assert report["outcome"] == "complete", name
        assert sum(replica["images"] for replica in report["replicas"]) == IMAGES


# Case 67.
def test_one_voice(launched: Launched) -> None:
    said = launched["torchrun 4"][1]
    assert "\r" not in said
    ours = [line for line in said.splitlines() if line.startswith("runner: ")]
    assert len(said.splitlines()) < 40, said
    assert len(ours) == len(set(ours))
    assert sum(line.startswith("runner: complete: 8 of 8") for line in ours) == 1
    assert sum("not trained for" in line for line in ours) <= 1


# Cases 10, 12: fewer prompts than ranks; then nothing to do.
def test_one_prompt_on_four_ranks_and_again(tmp_path: Path) -> None:
    manifest, output = job(tmp_path, prompts=["a red circle"]), tmp_path / "out"
    first = launch([manifest, "--output", output], nproc=4)
    assert first.returncode == 0, first.stderr
    assert len(pixels(output)) == 1
    journals = list((output / ".runner" / "journal").glob("*-0*-*"))
    assert len(journals) == 1  # the others had nothing to write, and loaded no model
    before = stamps(output)
    again = launch([manifest, "--output", output], nproc=3)
    assert again.returncode == 0, again.stderr
    assert stamps(output) == before


def workers_of(process: subprocess.Popen[Any]) -> list[int]:
    """The launcher's children: its ranks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children]


def images_in(output: Path) -> int:
    return len(list(output.glob("*.png")))


def start(arguments: list[Any], program: Sequence[str] = ("-m", "runner")) -> Any:
    """Start a launch on two ranks."""
    return subprocess.Popen(
        command_line(arguments, nproc=2, program=program),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


# Cases 26, 36, invariant 1: kill -9 of a rank, then the same command with other numbers of ranks.
def test_killed_ranks_lose_nothing(tmp_path: Path, flux: Path) -> None:
    values = {"model": str(flux), "parameters": FAST, "prompts": [f"a cat {i}" for i in range(60)]}
    manifest, output = job(tmp_path, **values, stop_grace_s=2), tmp_path / "out"
    reference = launch([manifest, "--output", tmp_path / "reference"])
    assert reference.returncode == 0, reference.stderr
    wanted = pixels(tmp_path / "reference")
    kept: dict[str, tuple[int, int]] = {}
    for victim, images in ((1, 3), (0, 25)):
        held = (str(SUPPORT / "held.py"), str(images), str(output))
        process = start([manifest, "--output", output], held)
        with running(process):
            wait_for(lambda images=images: images_in(output) >= images)  # type: ignore[misc]
            os.kill(workers_of(process)[victim], signal.SIGKILL)
            end = ended(process)
        assert not end.was_forced
        assert end.code != 0
        found = pixels(output)
        assert all(found[name] == wanted[name] for name in found)
        assert {name: stamps(output)[name] for name in kept} == kept
        kept = stamps(output)
    status = launch(["status", manifest, "--output", output, "--exit-code"])
    assert status.returncode == 75, status.stderr
    last = launch([manifest, "--output", output], nproc=3)
    assert last.returncode == 0, last.stderr
    assert pixels(output) == wanted
    assert {name: stamps(output)[name] for name in kept} == kept
    assert [line["index"] for line in lines(output / "metadata.jsonl")] == list(range(60))
    assert not list(output.glob(".*.part"))
    assert launch(["status", manifest, "--output", output, "--exit-code"]).returncode == 0


# Case 31: TERM to the launcher.
def test_term_ends_in_seconds_with_whole_images(tmp_path: Path, flux: Path) -> None:
    values = {
        "model": str(flux),
        "parameters": FAST,
        "prompts": [f"a dog {i}" for i in range(2000)],
    }
    manifest, output = job(tmp_path, **values), tmp_path / "out"
    with running(start([manifest, "--output", output])) as process:
        wait_for(lambda: images_in(output) >= 5)
        busy = launch([manifest, "--output", output])
        assert (busy.returncode, "another job works on this folder" in busy.stderr) == (2, True)
        process.terminate()
        end = ended(process)
    assert not end.was_forced
    assert end.code != 0
    assert summary(output)["outcome"] == "interrupted"
    made = pixels(output)  # opens each image
    assert 5 <= len(made) < 2000
    status = launch(["status", manifest, "--output", output, "--exit-code"])
    assert status.returncode == 75
    assert len(lines(output / "metadata.jsonl")) == len(made)


# Case 49: one process per node asks the hub; the others wait, and read its files offline.
@pytest.mark.slow
def test_one_rank_downloads(tmp_path: Path, flux: Path) -> None:
    manifest = job(tmp_path, model="owner/name", parameters=FAST, prompts=["a cat"] * 4)
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_TOKEN": "hf_SECRET"}
    log, program = tmp_path / "log", (str(SUPPORT / "hub_launch.py"), str(flux))
    failed = launch(
        [tmp_path / "bad", "--fail", manifest, "--output", tmp_path / "out"],
        nproc=2, env={**env, "HF_HUB_CACHE": str(tmp_path / "bad-hub")}, program=program,
    )  # fmt: skip
    assert failed.returncode != 0
    said = [line for line in failed.stderr.splitlines() if line.startswith("runner: owner/name")]
    assert len(said) == 1, failed.stderr
    assert "not in the cache, and the hub cannot be reached" in said[0]
    assert "hf_SECRET" not in failed.stderr
    assert not images_in(tmp_path / "out")
    done = launch([log, manifest, "--output", tmp_path / "out"], nproc=4, env=env, program=program)
    assert done.returncode == 0, done.stderr
    asked = log.read_text().splitlines()
    assert asked.count("weights rank 0") == 1
    assert all(line.endswith("rank 0") for line in asked)
    assert lines(tmp_path / "out" / "metadata.jsonl")[0]["revision"].startswith("0123")


# Case 65: the exit codes of one process, and what torchrun makes of them.
def test_exit_codes(tmp_path: Path, flux: Path) -> None:
    bad = job(tmp_path, "bad.yaml", dtype="float8")
    missing = job(tmp_path, "missing.yaml", model="./nothing")
    for manifest in (bad, missing):
        single = launch([manifest, "--output", tmp_path / "out"])
        assert single.returncode == 2, single.stderr
        assert "Traceback" not in single.stderr
        assert len(single.stderr.splitlines()) == 1
    several = launch([bad, "--output", tmp_path / "out"], nproc=2)
    assert several.returncode == 1
    assert several.stderr.count("dtype: float8") == 1
    assert launch([]).returncode == 2
    assert launch(["--help"]).returncode == 0
    slurm = launch([bad], env={"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    assert (slurm.returncode, "torchrun" in slurm.stderr) == (2, True)
