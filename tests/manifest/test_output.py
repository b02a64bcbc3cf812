"""Names of output folders that would become strange folders on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli import main

NAMES = [
    ("s3://bucket/run1", "s3:// is not a local folder"),
    ("HF://datasets/me/run", "HF:// is not a local folder"),
    ("out.tar", "not to one .tar file"),
    ("clips/film.MP4", "not to one .mp4 file"),
    ("~/run1", "~ has no meaning here; write the whole path"),
    ("~", "~ has no meaning here; write the whole path"),
]


@pytest.mark.parametrize(("name", "words"), NAMES)
@pytest.mark.parametrize("command", ["validate", "plan", "run", "status", "stop"])
def test_outputs_that_are_no_local_folder(
    manifest: Callable[..., Path], capsys: pytest.CaptureFixture[str], command: str, name: str,
    words: str,
) -> None:  # fmt: skip
    path = manifest(model="demo", prompts=["a"], output=name)
    assert main([command, str(path)]) == 2
    error = capsys.readouterr().err
    assert f"job.yaml:1: output: {name}: " in error
    assert words in error
    path = manifest(model="demo", prompts=["a"])
    with pytest.raises(SystemExit) as end:
        main([command, str(path), f"--output={name}"])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert [entry.name for entry in path.parent.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize("name", ["a:b", "v1.2", "tar", "~backup", "run.zipped", "s3:x"])
def test_folders_with_unusual_names(manifest: Callable[..., Path], name: str) -> None:
    assert main(["validate", str(manifest(model="demo", prompts=["a"], output=name))]) == 0


def test_what_no_path_has(
    manifest: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(model="demo", prompts=["a"], output="a\0b")
    for command in ("validate", "plan"):
        assert main([command, str(path)]) == 2
        assert "a NUL byte, which no path has; remove it" in capsys.readouterr().err
