"""The Kubernetes files: they are valid, and their shell scripts work."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from support import ROOT
from support.jobs import ENVIRONMENT, HOOKED, Job, ended, running

FILE = ROOT / "cluster" / "kubernetes.yaml"
VERSION = "1.33"  # the first in which every field here is stable


def job_spec() -> Any:
    return yaml.safe_load(FILE.read_text())


def container_script(path: Path) -> str:
    spec = yaml.safe_load(path.read_text())["spec"]
    if "trainer" in spec:
        return str(spec["trainer"]["args"][0])
    return str(spec["template"]["spec"]["containers"][0]["args"][0])


def test_it_is_valid_and_a_misspelt_key_is_not() -> None:
    kubernetes_validate.validate(job_spec(), VERSION, strict=True)
    wrong = job_spec()
    wrong["spec"]["backoffLimitPerIndexes"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_the_train_job_is_valid_and_a_misspelt_key_is_not() -> None:
    """By the models that Kubeflow generates from its schema: they drop a key that they lack."""
    spec = yaml.safe_load((ROOT / "cluster" / "trainjob.yaml").read_text())
    assert train_job(spec) == spec
    patch = spec["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    patch["replicatedJob"] = patch.pop("replicatedJobs")
    assert train_job(spec) != spec
    spec["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(ValueError, match="numNodes"):
        train_job(spec)


def train_job(spec: dict[str, Any]) -> dict[str, Any]:
    job = TrainerV1alpha1TrainJob.from_dict(spec)
    assert job is not None
    return dict(job.to_dict())


def test_its_numbers_agree() -> None:
    spec = job_spec()["spec"]
    container = spec["template"]["spec"]["containers"][0]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert int(values["SHARDS"]) == spec["completions"] == spec["parallelism"]
    assert values["GPUS"] == container["resources"]["limits"]["nvidia.com/gpu"]
    handled = [r["onExitCodes"]["values"] for r in spec["podFailurePolicy"]["rules"][1:]]
    assert sorted(code for codes in handled for code in codes) == [1, 2, 3, 75]


@pytest.mark.parametrize("name", ["kubernetes.yaml", "trainjob.yaml"])
@pytest.mark.slow
def test_the_container_answers_with_the_state_of_the_folder(tmp_path: Path, name: str) -> None:
    """Run with this machine's `torchrun` and paths; TERM goes to the shell, as to process 1."""
    job = Job(tmp_path, 30)
    tools = tmp_path / "bin"
    tools.mkdir()
    hooks = shlex.quote(json.dumps({"marks": str(tmp_path), "seconds": 0.3}))
    scripts = {
        "python": f'exec {sys.executable} "$@"',
        # `-m runner` becomes the hooked runner; all else is as given.
        "torchrun": 'args=("$@"); for i in "${!args[@]}"; do [[ ${args[i]} == runner ]] && at=$i; '
        f'done; exec {sys.executable} -m torch.distributed.run "${{args[@]:0:at-1}}" {HOOKED} '
        f'{hooks} "${{args[@]:at+1}}"',
    }
    for tool, line in scripts.items():
        (tools / tool).write_text(f"#!/bin/bash\n{line}\n")
        (tools / tool).chmod(0o755)
    text = container_script(ROOT / "cluster" / name)
    text = text.replace("/manifests/job.yaml", str(job.manifest))
    text = text.replace("/outputs/job", str(job.output))
    values = {"SHARDS": "1", "GPUS": "1", "JOB_COMPLETION_INDEX": "0"}
    environment = {**ENVIRONMENT, **values, "PATH": f"{tools}:{os.environ['PATH']}"}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", text],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    job.hold(20)
    with running(start()) as process:
        job.wait_for_images(3)
        process.send_signal(signal.SIGTERM)
        assert ended(process).code == 75
    assert job.partial_files() == []
    job.release(20)
    with running(start()) as process:
        assert ended(process).code == 0
    assert len(job.images()) == 30
