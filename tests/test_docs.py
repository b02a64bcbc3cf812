"""What the documents say is true: manifests, examples, links, commands."""

import re
from pathlib import Path

import pytest
from support.launch import plan_of

from runner.cli import main
from runner.manifest.load import load
from runner.options import COMMANDS

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [HOME / "README.md", *sorted(HOME.glob("docs/*.md")), HOME / "runner/demo/README.md"]
MANIFESTS = sorted((HOME / "manifests").glob("*.yaml"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_manifest_is_good(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(path)]) == 0
    assert "good" in capsys.readouterr().out
    assert len(plan_of(load(path))) >= 1


def test_examples_in_the_readme_are_good(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(examples) >= 2
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        assert len(plan_of(load(path))) >= 2


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(HOME)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_every_command_and_option_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert re.search(rf"python -m runner \[?{command}\b", README), command
        with pytest.raises(SystemExit):
            main([command, "--help"])
        for option in set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}:
            assert option in README, f"{command} {option}"


def test_every_key_of_a_manifest_is_told() -> None:
    from runner.manifest.schema import Manifest, OutputSpec
    from runner.model.spec import ModelSpec

    keys = set(Manifest.model_fields) - {"versions"}
    for name in keys | set(ModelSpec.model_fields) | set(OutputSpec.model_fields) - {"dir"}:
        assert re.search(rf"\b{name}\b", README), name


def test_every_file_of_the_package_is_in_the_reading_order() -> None:
    for path in sorted((HOME / "runner").glob("*.py")):
        if path.name != "__init__.py" and path.name != "errors.py":
            assert path.name in README, path.name


# Case 64: no fixed port in anything that users copy.
def test_no_fixed_port() -> None:
    for path in [*DOCUMENTS, HOME / "Makefile", *MANIFESTS]:
        assert "29500" not in path.read_text(encoding="utf-8"), path
