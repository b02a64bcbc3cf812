"""Run the commands that the documents show and write down what they print: `make docs`.

docs/commands.md has the `--help` of every command. In README.md and docs/*.md each ```console
block has commands, after `$ `, and their output; a block with a file name after its language, as
```yaml list.yaml, is a file that they read. All run in this order in one folder, which begins with
a copy of manifests/.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
HELP = HOME / "docs/commands.md"
ENVIRONMENT = {"COLUMNS": "88", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOME)}
# `make run` is the first run of manifests/job.yaml, once .venv/ is there.
SHELL = f"""\
runner() {{ '{sys.executable}' -m runner "$@"; }}
make() {{ runner manifests/job.yaml; }}
"""
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRESS = re.compile(r"^runner: (\d+ of \d+ images?(, .*)?|loading the model …)\n", re.MULTILINE)
# What is measured, or drawn for each launch.
VARIES = re.compile(r'\d+\.\d+(?= images/s)|(?<="seconds":)[\d.]+')


def documents() -> list[Path]:
    return [HOME / "README.md", *sorted(path for path in HOME.glob("docs/*.md") if path != HELP)]


def help_page() -> str:
    """docs/commands.md as it should be."""
    parts = ["# Commands\n\nMade by `make docs`. `python -m runner` is the same as `runner`.\n"]
    for words in ("runner --help", *(f"runner {name} --help" for name in names())):
        parts.append(f"```console\n$ {words}\n{printed(words, HOME)}```\n")
    return "\n".join(parts)


def names() -> list[str]:
    """Of all commands, as `runner --help` lists them."""
    return re.findall(r"^  ([a-z]+) +\w", printed("runner --help", HOME), re.MULTILINE)


def renewed(text: str, folder: Path) -> str:
    """A document with the output of its commands, run in `folder`, as it is now."""

    def renew(block: re.Match[str]) -> str:
        language, name, inside = block.groups()
        if name:
            (folder / name).write_text(inside, encoding="utf-8")
        if language != "console":
            return block[0]
        real = "".join(f"$ {words}\n{printed(words, folder)}" for words in commands(inside))
        return block[0] if alike(inside, real) else f"```console\n{real}```"

    return BLOCK.sub(renew, text)


def commands(block: str) -> Iterator[str]:
    """Those of a console block; one may go on after a backslash."""
    for found in re.finditer(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE):
        yield found[1]


def printed(command: str, folder: Path) -> str:
    """stdout and stderr of a shell command."""
    done = subprocess.run(
        ["bash", "-c", SHELL + command],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def alike(shown: str, real: str) -> bool:
    """Whether two outputs differ in progress and measured numbers alone."""
    first, second = (VARIES.sub("N", PROGRESS.sub("", text)) for text in (shown, real))
    return first == second


def copy_manifests(folder: Path) -> None:
    shutil.copytree(HOME / "manifests", folder / "manifests")


def main() -> None:
    HELP.write_text(help_page(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        copy_manifests(Path(name))
        for path in documents():
            path.write_text(renewed(path.read_text(encoding="utf-8"), Path(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
