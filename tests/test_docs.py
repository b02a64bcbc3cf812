"""What the documents say is true: manifests, examples, commands and their output, keys, links."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launch import plan_of

from runner.cli import main
from runner.manifest.load import load
from runner.units import install_line

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    *(HOME / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted(HOME.glob("docs/*.md")),
    HOME / "benchmarks/README.md",
    HOME / "runner/demo/README.md",
]
MANIFESTS = sorted((HOME / "manifests").glob("*.yaml"))
EXAMPLES = re.compile(r"^```yaml(?: \S+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KEYS: dict[str, Any] = runpy.run_path(str(HOME / "docs/keys.py"))
TOOL: dict[str, Any] = runpy.run_path(str(HOME / "docs/commands.py"))


def written_by_hand() -> str:
    """All documents but the page that has the help of every command."""
    paths = [path for path in DOCUMENTS if path != TOOL["HELP"]]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def named(path: Path) -> str:
    return str(path.relative_to(HOME))


@pytest.mark.parametrize("path", MANIFESTS, ids=named)
def test_every_manifest_is_good(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(path)]) == 0
    assert "good" in capsys.readouterr().out
    assert len(plan_of(load(path))) >= 1


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_examples_are_good(path: Path, tmp_path: Path) -> None:
    """An example is a manifest or some of its keys."""
    words = path.read_text(encoding="utf-8")
    for name in ("prompts.txt", "prompts.jsonl", "prompts.csv", "more.csv"):
        (tmp_path / name).write_text('"prompt"\n"a cat"\n"a dog"\n', encoding="utf-8")
    for name, text in FILES.findall(words):
        (tmp_path / name).write_text(text, encoding="utf-8")
    for number, text in enumerate(EXAMPLES.findall(words)):
        rest = {"model": "model: demo", "prompts": "prompts: [a cat, a dog]"}
        missing = [line for key, line in rest.items() if key not in yaml.safe_load(text)]
        manifest = tmp_path / f"{number}.yaml"
        manifest.write_text("\n".join([text, *missing]), encoding="utf-8")
        assert len(plan_of(load(manifest))) >= 2


def test_the_readme_has_the_shortest_manifest() -> None:
    shortest = EXAMPLES.findall(README)[0]
    assert set(yaml.safe_load(shortest)) == {"model", "dtype", "prompts"}
    assert len(shortest.splitlines()) == 5


@pytest.mark.slow
def test_commands_print_what_the_documents_show(tmp_path: Path) -> None:
    TOOL["copy_manifests"](tmp_path)
    for path in TOOL["documents"]():
        text = path.read_text(encoding="utf-8")
        assert TOOL["renewed"](text, tmp_path) == text, f"{path}: make docs"


def test_other_output_is_noticed(tmp_path: Path) -> None:
    shown = "```console\n$ echo 12 images\n11 images\n```\n"
    assert TOOL["renewed"](shown, tmp_path) == shown.replace("11", "12")
    measured = "runner: 1 of 2 images\nrunner: complete: 2 of 2 images, 0.5 images/s\n"
    assert TOOL["alike"](measured, "runner: complete: 2 of 2 images, 1.25 images/s\n")
    assert TOOL["alike"](measured, f"runner: loading the model …\n{measured}")
    assert not TOOL["alike"](measured, "runner: complete: 3 of 3 images, 0.5 images/s\n")


def test_the_page_of_commands_is_their_help() -> None:
    page = TOOL["HELP"].read_text(encoding="utf-8")
    assert page.split() == TOOL["help_page"]().split(), "make docs"  # argparse wraps as it likes


def test_no_line_installs_a_stranger() -> None:
    """Outside a checkout, pip would take another package of this name."""
    for path in [*DOCUMENTS, *MANIFESTS, *HOME.glob("runner/**/*.py")]:
        assert not re.search(r"pip install[^\n]*\brunner\b", path.read_text()), path
    assert install_line("pyarrow", "a>=1", "b==2") == "pip install pyarrow 'a>=1' b==2"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    for target, place in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text(encoding="utf-8")
    ):
        if "://" not in target:
            file = path.parent / target if target else path
            assert file.exists(), target
            assert not place or place in headings(file), f"{target}#{place}"


def headings(path: Path) -> set[str]:
    """The places that a link can name, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_document_is_linked_in_the_readme() -> None:
    for path in DOCUMENTS[2:]:
        assert f"({named(path)})" in README, path


def test_every_command_and_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = written_by_hand()
    assert len(TOOL["names"]()) >= 6
    for command in TOOL["names"]():
        assert re.search(rf"runner {command}\b", text), command
        with pytest.raises(SystemExit):
            main([command, "--help"])
        for option in set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}:
            assert option in text, f"{command} {option}"


def test_every_key_of_a_manifest_is_explained() -> None:
    """By a table that is made from the models; a key without a description makes none."""
    text = (HOME / "docs/manifest.md").read_text(encoding="utf-8")
    assert KEYS["renewed"](text) == text, "make docs"
    shown = {name for _, name in KEYS["TABLE"].findall(text)}
    assert shown == {model.__name__ for model in KEYS["models"]()}


def test_the_schema_beside_the_documents_is_what_the_command_prints() -> None:
    assert KEYS["SCHEMA"].read_text(encoding="utf-8") == KEYS["schema_text"](), "make docs"


@pytest.mark.parametrize("path", MANIFESTS, ids=named)
def test_an_editor_finds_the_schema_of_every_manifest(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    target = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / target).resolve() == KEYS["SCHEMA"]


def test_every_file_of_the_package_is_in_the_reading_order() -> None:
    for path in sorted((HOME / "runner").iterdir()):
        if path.suffix == ".py" and path.name != "__init__.py":
            assert path.name in README, path.name
        elif (path / "__init__.py").exists():
            assert f"  {path.name}/ " in README, path.name


def test_every_target_of_make_is_explained() -> None:
    makefile = (HOME / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE):
        if target not in ("help", "clean"):  # which say it themselves
            assert f"`make {target}" in written_by_hand(), target


# Case 64: no fixed port in anything that users copy.
def test_no_fixed_port() -> None:
    for path in [*DOCUMENTS, HOME / "Makefile", *MANIFESTS]:
        assert "29500" not in path.read_text(encoding="utf-8"), path
