"""The structure holds: import order, late torch, no stray devices or environment."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import runner

HOME = Path(runner.__file__).parent
MODULES = sorted(path for path in HOME.rglob("*.py") if "demo" not in path.parts)

# Each row may import the rows above it, and its own.
ROWS = (
    ("errors", "settings", "units", "yaml_tree", "demo"),
    ("world", "encoders", "truncation"),
    ("strategies",),
    ("prompts",),
    ("manifest",),
    ("model", "plan", "signature"),
    ("preflight", "compiled"),
    ("sizing",),
    ("compare",),
    ("store",),
    ("shard", "pulse", "stop", "crashes", "group"),
    ("replica",),
    ("files",),
    ("images",),
    ("record",),
    ("journal",),
    ("folder",),
    ("lock",),
    ("rescue",),
    ("pipeline",),
    ("resume", "report", "disk", "writer", "progress", "fake", "probe"),
    ("start",),
    ("selfcheck",),
    ("work",),
    ("planned", "status", "run", "slurm"),
    ("cli",),
    ("__main__",),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}


def module_of(path: Path) -> str:
    return path.relative_to(HOME).parts[0].removesuffix(".py")


def imports(path: Path, *, top_only: bool = False) -> list[str]:
    """Every module that a file imports, in full, those below `TYPE_CHECKING` left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[str] = []
    nodes = list(tree.body) if top_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(HOME)))
def test_imports_go_up(path: Path) -> None:
    name = module_of(path)
    if name == "__init__":
        return
    assert name in ROW, f"{name}: give it a row in ROWS"
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == "runner" and len(parts) > 1 and parts[1] in ROW:
            assert ROW[parts[1]] <= ROW[name], f"{name} imports {parts[1]}, which is below it"


def test_every_row_names_modules_that_exist() -> None:
    assert {module_of(path) for path in MODULES} - {"__init__"} == set(ROW) - {"demo"}


def test_only_world_reads_the_environment() -> None:
    for path in MODULES:
        if path.name != "world.py":
            assert not re.search(r"os\.environ|getenv", path.read_text()), path


# Case 16: a bare device type is the first GPU for every rank.
def test_no_bare_devices() -> None:
    for path in MODULES:
        if path.name in ("world.py", "backends.py"):  # the one chooses devices, the other is data
            continue
        assert not re.search(r"\.cuda\(|[\"']cuda[\"']", path.read_text()), path


MANIFEST = str(HOME.parent / "manifests/job.yaml")


@pytest.mark.parametrize("arguments", [["--help"], ["validate", MANIFEST], ["plan", MANIFEST]])
def test_torch_is_not_imported_to_look_at_a_manifest(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom runner.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'diffusers', 'transformers', 'PIL'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_functions_are_short() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno
                assert length <= 60, f"{path.name}:{node.lineno} {node.name}: {length} lines"


@pytest.fixture(scope="module")
def where_modules_work() -> Path:
    return Path.cwd()


def test_no_test_works_where_make_run_leaves_images(
    tmp_path: Path, where_modules_work: Path
) -> None:
    assert Path.cwd() == tmp_path
    assert not where_modules_work.is_relative_to(HOME.parent)
