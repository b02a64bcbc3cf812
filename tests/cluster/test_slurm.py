"""The batch script, under a real Slurm that the tests start and stop."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import ROOT
from support.jobs import ENVIRONMENT, HOOKED, Job, kill, wait_for
from support.slurm_cluster import Slurm, missing

from runner.cli import main
from runner.commands.slurm import minutes_of

cluster = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"a Slurm of its own needs {missing()}"),
]


@pytest.fixture
def slurm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    with Slurm(tmp_path / "slurm", **getattr(request, "param", {})) as booted:
        python = booted.folder / "bin" / "python"
        # Not a link, which would lose the virtual environment.
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        yield booted


def batch(job: Job, *arguments: str, **hooks: Any) -> str:
    """The script for a job, its worker on the fake renderer; nothing else is changed."""
    command = [sys.executable, "-m", "runner", "slurm", str(job.manifest), *arguments]
    text = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout
    marks = {"marks": str(job.folder), **hooks}
    assert text.count(' -m runner "${job[@]}" &') == 1
    return text.replace(
        ' -m runner "${job[@]}" &', f' {HOOKED} {shlex.quote(json.dumps(marks))} "${{job[@]}}" &'
    )


def is_complete(job: Job, images: int) -> None:
    """Every image is there, whole, and was made once."""
    assert len(job.images()) == images
    assert job.partial_files() == []
    made = Counter(line["done"] for line in job.journal() if "done" in line)
    assert sorted(made) == list(range(images))
    assert set(made.values()) == {1}


def test_the_scripts_in_the_repository_are_the_ones_that_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for path in sorted((ROOT / "cluster").glob("slurm*.sh")):
        made_by = path.read_text().splitlines()[1].removeprefix("# Made by: python -m runner ")
        assert main(shlex.split(made_by)) == 0
        assert capsys.readouterr().out == path.read_text(), path
        subprocess.run(["bash", "-n", path], check=True)


# Cases 31 and 64.
def test_the_script_asks_for_an_early_signal_and_no_fixed_port() -> None:
    for path in (ROOT / "cluster").glob("slurm*.sh"):
        text = path.read_text()
        assert "--signal=B:USR1@" in text
        assert "--requeue" in text
        assert "29500" not in text
        handler = next(line for line in text.splitlines() if line.startswith("on_signal"))
        assert "$(" not in handler
        assert "`" not in handler


def test_hostile_names_stay_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a $(touch pwned)\ntouch pwned\n#'\".yaml"
    out = "o\n$(touch pwned)`touch pwned`'\\'\x1b]0;é\u202e\x9b31m"
    Path(name).write_text(json.dumps({"model": "demo", "output": out, "prompts": ["a dog"]}))
    assert main(["slurm", name, "--gpus-per-node", "1", "--time", "5"]) == 0
    text = capsys.readouterr().out
    assert "\ufffd" not in text  # nothing was left for the terminal's sake to replace
    assert all(line.isprintable() for line in text.splitlines())
    start, _, _ = text.partition("\nrm -f ")
    check = f'{start}\nprintf "%s\\0" "${{job[@]}}" "$stop"\n'
    done = subprocess.run(["bash", "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == [name, f"{out}/.runner/stop"]
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--time", "2"], "asked to stop at once"),
        (["--time", "soon"], "--time soon: write minutes"),
        (["--time", "5", "--array", "2", "--nodes", "2"], "--array 2 makes one-node jobs"),
        (["--time", "5", "--partition", "a b\n"], "not the name of a partition"),
        (["--time", "5", "--submit"], "no sbatch on this machine"),
        (["--time", "5", "--account", "a;b"], "not the name of an account"),
        (["--time", "5", "--qos", "x\n#SBATCH"], "not the name of a QOS"),
        (["--time", "5", "--sbatch-arg=-x"], "not an option of sbatch"),
        (["--time", "5", "--sbatch-arg=--comment=a\nrm"], "not an option of sbatch"),
        (["--time", "5", "--sbatch-arg=--array=1-9"], "the script sets --array itself"),
    ],
)
def test_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    job = Job(tmp_path)
    assert main(["slurm", str(job.manifest), "--gpus-per-node", "8", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_account_qos_and_other_options_of_sbatch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path)
    words = ["slurm", str(job.manifest), "--gpus-per-node=8", "--time=60"]
    more = ["--account=lab-1", "--qos=low", "--sbatch-arg=--constraint=a100&nvlink"]
    assert main([*words, *more, "--sbatch-arg=--exclusive"]) == 0
    lines = capsys.readouterr().out.splitlines()
    given = [line for line in lines if line.startswith("#SBATCH")]
    assert {"#SBATCH --account=lab-1", "#SBATCH --qos=low", "#SBATCH --exclusive"} <= set(given)
    assert "#SBATCH '--constraint=a100&nvlink'" in given
    made_by = shlex.split(lines[1].removeprefix("# Made by: python -m runner "))
    assert set(more) <= set(made_by)
    assert main(made_by) == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("MaxArraySize            = 1001", "takes --array 1000 at most (MaxArraySize 1001)"),
        ("", "the site's MaxArraySize limits --array"),
    ],
)
def test_an_array_that_is_too_large_is_explained(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    words: str,
) -> None:
    refusal = "sbatch: error: Batch job submission failed: Invalid job array specification"
    tools = {"sbatch": f"echo '{refusal}' >&2; exit 1", "scontrol": f"echo '{config}'"}
    for name, line in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = Job(tmp_path)
    arguments = ["--gpus-per-node", "8", "--time", "60", "--array", "5000", "--submit"]
    assert main(["slurm", str(job.manifest), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("5", 5), ("5:30", 5.5), ("2:00:00", 120), ("1-2", 1560), ("1-0:0:6", 1440.1)],
)
def test_the_forms_of_a_time(time: str, minutes: float) -> None:
    assert minutes_of(time) == pytest.approx(minutes)


class TestSlurm:
    pytestmark = cluster

    @pytest.mark.parametrize("slurm", [{"nodes": 1}], indirect=True)
    def test_slurm_takes_every_option(self, tmp_path: Path, slurm: Slurm) -> None:
        job = Job(tmp_path)
        options = ["--account=lab-1", "--qos=low", "--partition=high", "--array=4"]
        more = ["--hold", "--comment=two words & more", "--exclusive"]
        words = [*options, *(f"--sbatch-arg={word}" for word in more)]
        number = slurm.submit(batch(job, "--gpus-per-node=1", "--time=1-00:00:00", *words))
        shown = slurm.call("scontrol", "show", "job", "-o", number)
        # A QOS is taken, too, but only a cluster with a database of accounts shows it.
        for wanted in ("Account=lab-1", "Partition=high", "ArrayTaskId=1-4"):
            assert f" {wanted} " in shown
        assert " TimeLimit=1-00:00:00 " in shown
        assert " Comment=two words & more " in shown
        assert " Reason=JobHeldUser " in shown

    @pytest.mark.parametrize("slurm", [{"nodes": 1}], indirect=True)
    def test_slurm_refuses_a_large_array_and_we_explain(self, tmp_path: Path, slurm: Slurm) -> None:
        job = Job(tmp_path)
        words = ["--gpus-per-node=1", "--time=60", "--array=5000", "--submit"]
        command = [sys.executable, "-m", "runner", "slurm", str(job.manifest), *words]
        done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True)
        assert done.returncode == 2
        assert "this site takes --array 1000 at most (MaxArraySize 1001)" in done.stderr

    @pytest.mark.parametrize("slurm", [{}, {"requeue_exit": True}], indirect=True)
    def test_two_nodes_over_time_limits_until_complete(self, tmp_path: Path, slurm: Slurm) -> None:
        """So slow that the first launches cannot make all images within their two minutes."""
        limits = 1 if slurm.extra else 2
        images = 80 * limits
        job = Job(tmp_path, images, stop_grace_s=10)
        slow = {"seconds": 3.0, "launches": limits}
        text = batch(
            job, "--nodes=2", "--gpus-per-node=1", "--time=2", "--signal-lead-s=80", slow=slow
        )
        number = slurm.submit(text)
        slurm.wait(number, ["COMPLETED"], 600)
        restarts = int(slurm.value(number, "Restarts"))
        print(f"{images} images, {restarts} time limits")
        assert restarts >= limits
        is_complete(job, images)
        assert f"complete: {images} of {images}" in slurm.output(number)

    def test_preempted_and_resumed(self, tmp_path: Path, slurm: Slurm) -> None:
        job = Job(tmp_path, 40)
        text = batch(
            job, "--nodes=2", "--gpus-per-node=1", "--time=10", "--partition=low", seconds=0.5
        )
        number = slurm.submit(text)
        job.wait_for_images(4)
        other = slurm.submit("#!/bin/sh\nsleep 5\n", "--partition=high", "--nodes=2", "--exclusive")
        slurm.wait(other, ["COMPLETED"], 180)
        assert job.partial_files() == []
        assert len(job.images()) < 40
        slurm.wait(number, ["COMPLETED"], 180)
        assert int(slurm.value(number, "Restarts")) == 1
        is_complete(job, 40)

    def test_scancel_leaves_whole_files_and_is_not_requeued(
        self, tmp_path: Path, slurm: Slurm
    ) -> None:
        job = Job(tmp_path, 60)
        number = slurm.submit(
            batch(job, "--nodes=2", "--gpus-per-node=1", "--time=10", seconds=0.5)
        )
        job.wait_for_images(4)
        slurm.call("scancel", number)
        slurm.wait(number, ["CANCELLED"], 120)
        wait_for(lambda: job.status() == 75 and "running" not in job.summary()["outcome"])
        assert job.partial_files() == []
        assert 4 <= len(job.images()) < 60
        time.sleep(3)
        assert slurm.state(number) == "CANCELLED"
        assert job.run().code == 0
        is_complete(job, 60)

    def test_a_node_dies(self, tmp_path: Path, slurm: Slurm) -> None:
        job = Job(tmp_path, 60)
        number = slurm.submit(
            batch(job, "--nodes=2", "--gpus-per-node=1", "--time=10", seconds=0.5)
        )
        job.wait_for_images(4)
        node_dies(slurm, "n2")
        wait_for(lambda: slurm.value(number, "Restarts") == "1", 180)
        assert job.partial_files() == []
        slurm.start_node("n2")
        slurm.wait(number, ["COMPLETED"], 180)
        is_complete(job, 60)

    def test_an_array_over_one_folder(self, tmp_path: Path, slurm: Slurm) -> None:
        job = Job(tmp_path, 30)
        number = slurm.submit(
            batch(job, "--array=3", "--gpus-per-node=1", "--time=10", seconds=0.2)
        )
        for part in (1, 2, 3):
            slurm.wait(f"{number}_{part}", ["COMPLETED"], 120)
        is_complete(job, 30)
        assert job.status() == 0
        assert len(job.metadata()) == 30


def node_dies(slurm: Slurm, name: str) -> None:
    """Kill its daemon and everything that runs on it, at once and without warning."""
    steps = [process for process in psutil.process_iter() if _is_step_of(process, name)]
    slurm.daemons[name].kill()
    slurm.daemons[name].wait()
    for process in steps:
        for child in [*process.children(recursive=True), process]:
            kill(child)


def _is_step_of(process: psutil.Process, name: str) -> bool:
    """Whether it is a `slurmstepd` of this node, which only its log's name shows."""
    try:
        files = [
            Path(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")
        ]
        return process.name() == "slurmstepd" and any(
            str(file.readlink()).endswith(f"d-{name}.log") for file in files
        )
    except (OSError, psutil.Error):
        return False
