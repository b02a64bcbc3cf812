"""The Dockerfile: its steps as far as they can be run without Docker, and that it fits
cluster/kubernetes.yaml."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from support import ROOT

import runner

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOBS = ("kubernetes.yaml", "trainjob.yaml")


class Step(NamedTuple):
    name: str
    words: str


def steps() -> list[Step]:
    """The instructions, without comments, their lines joined."""
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [Step(*line.split(" ", 1)) for line in joined.splitlines()]


def named(name: str) -> list[str]:
    return [step.words for step in steps() if step.name == name]


def copied() -> list[str]:
    """What the image takes from the repository."""
    parts = [words.split() for words in named("COPY") if not words.startswith("--from")]
    return [source for *sources, _ in parts for source in sources]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `docker build` sees: only what .dockerignore lets through."""
    kept = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    folder = tmp_path_factory.mktemp("context")
    for name in kept:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=lambda *_: {"__pycache__"})
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_it_keeps_to_the_rules() -> None:
    """Those of hadolint that fit: pinned images, no root, no shell forms, no caches."""
    base = re.compile(r"python:(3\.\d+)-slim-[a-z]+( AS \w+)?")
    for words in named("FROM"):
        found = base.fullmatch(words)
        assert found is not None, words
        least = PROJECT["requires-python"].removeprefix(">=")
        assert [*map(int, found[1].split("."))] >= [*map(int, least.split("."))]
    assert not named("ADD")
    assert all(words.startswith("/") for words in named("WORKDIR"))
    assert all(isinstance(json.loads(words), list) for words in named("ENTRYPOINT") + named("CMD"))
    installs = [words for words in named("RUN") if "pip install" in words]
    assert len(installs) == 2
    for words in installs:
        assert "--no-cache-dir" in words
        assert "-c constraints.txt" in words or "--no-deps" in words
        assert "|" not in words


def test_all_that_it_copies_is_there(context: Path) -> None:
    for source in copied():
        assert (context / source).exists(), source
    assert {path.name for path in context.iterdir()} == set(copied())


def test_it_installs_what_the_project_needs(context: Path) -> None:
    step = next(words for words in named("RUN") if "needs.txt" in words)
    command = step.partition(" && ")[0].replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["bash", "-c", command], cwd=context, check=True)
    needs = (context / "needs.txt").read_text().split("\n")[:-1]
    (context / "needs.txt").unlink()
    assert needs == PROJECT["dependencies"]


def test_the_package_has_the_demo_model_and_every_template(context: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(tmp_path), str(context)], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if name.startswith("runner/")}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "runner").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - held == set()
    assert any(name.startswith("runner/demo/model/transformer/") for name in held)


def test_it_is_the_image_of_the_cluster_files() -> None:
    for name in JOBS:
        text = (ROOT / "cluster" / name).read_text()
        assert f"/runner:{runner.__version__}\n" in text, name
    assert f"runner:{runner.__version__} " in (ROOT / "Dockerfile").read_text()


def test_it_runs_as_the_user_of_the_pods() -> None:
    spec = yaml.safe_load((ROOT / "cluster/kubernetes.yaml").read_text())["spec"]["template"][
        "spec"
    ]
    user = named("USER")[-1]
    assert int(user) == spec["securityContext"]["runAsUser"] != 0
    assert f"useradd --uid {user} " in " ".join(named("RUN"))
    mounts = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert {"/manifests", "/outputs"} <= set(mounts)
    assert spec["containers"][0]["command"][0] == "bash"  # which Debian's slim image has
