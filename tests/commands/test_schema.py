"""`runner schema`: it takes what the runner takes, and explains every key."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from support import ROOT

from runner.cli import main
from runner.commands.schema import json_schema

MANIFESTS = sorted((ROOT / "manifests").glob("*.yaml"))
SCHEMA = json_schema()
RIGHT = jsonschema.Draft202012Validator(SCHEMA)


def keys() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of every mapping, with what the schema says about it."""
    for name, part in {"Manifest": SCHEMA, **SCHEMA["$defs"]}.items():
        for key, about in part.get("properties", {}).items():
            yield f"{name}.{key}", about


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_it_takes_every_manifest_that_ships(path: Any) -> None:
    RIGHT.validate(yaml.safe_load(path.read_text()))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_key_has_a_description_and_examples_that_are_right() -> None:
    found = dict(keys())
    assert {"Manifest.model", "ModelSpec.id", "DeviceMap.phases", "PromptItem.seed"} <= set(found)
    for name, about in found.items():
        assert about.get("description"), name
        assert about.get("examples"), name
        for example in about["examples"]:
            key = {**about, "$defs": SCHEMA["$defs"]}
            assert not [*jsonschema.Draft202012Validator(key).iter_errors(example)], name


@pytest.mark.parametrize(
    "wrong",
    [
        {"modle": "demo"},
        {"strategy": {"ulysses_degree": 2}},
        {"strategy": "tensor_parallel"},  # which needs a degree
        {"strategy": {"kind": "context_parallel", "degree": 2}},
        {"batch_size": 0},
        {"dtype": "float8"},
        {"prompts": []},
        {"prompts": [{"prompt": "a cat", "sed": 7}]},
    ],
)
def test_it_refuses_what_the_runner_refuses(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"model": "demo", "prompts": ["a cat"]}
    RIGHT.validate(good)
    assert not RIGHT.is_valid({**good, **wrong})


@pytest.mark.parametrize(
    "right",
    [
        {"strategy": "auto"},
        {"strategy": {"kind": "tensor_parallel", "degree": 2}},
        {"seed": 7},
        {"seed": {"fixed": 7}},
        {"model": {"id": "demo"}},
        {"output": "here"},
        {"output": {"dir": "here", "png_level": 6}},
        {"dtype": "bf16"},
        {"prompts": [{"prompt": "a cat", "seed": 7}, "a dog"]},
        {"prompts": {"file": "prompts.txt"}},
    ],
)
def test_it_takes_short_and_long_forms(right: dict[str, Any]) -> None:
    RIGHT.validate({"model": "demo", "prompts": ["a cat"], **right})


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
