"""The structure holds: about ten rules that a newcomer can rely on."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import runner

HOME = Path(runner.__file__).parent
FILES = sorted(path for path in HOME.rglob("*.py") if "demo" not in path.parts)

# The folders and files of runner/, from the ground up: each may import what stands before it.
ORDER = (
    "units",
    "say",
    "errors",
    "settings",
    "demo",
    "launch",
    "model",
    "strategies",
    "manifest",
    "plan",
    "folder",
    "render",
    "prepare",
    "commands",
    "first_image",
    "lead",
    "worker",
    "report",
    "run",
    "options",
    "cli",
    "__main__",
)
WITH_TORCH = ("render", "model/text_memory", "strategies")  # where torch may be imported at the top
LONGEST_FUNCTION, DEEPEST_NESTING = 60, 3


def name_of(path: Path) -> str:
    """`folder/journal`."""
    return path.relative_to(HOME).with_suffix("").as_posix()


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """Every module that a source imports, in full, and whether at the top of the file."""
    tree = ast.parse(text)
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", id(node) in top) for alias in node.names)


def upward(sources: Mapping[str, str]) -> list[str]:
    """Imports from a folder to one that stands above it; keys are names of files."""
    found = []
    for name, text in sources.items():
        own = name.partition("/")[0]
        for imported, _ in imports(text):
            parts = imported.split(".")
            is_ours = parts[0] == "runner" and len(parts) > 1 and parts[1] in ORDER
            if is_ours and ORDER.index(parts[1]) > ORDER.index(own):
                found.append(f"{name} imports {imported}, which stands above it")
    return found


def circles(sources: Mapping[str, str]) -> list[str]:
    """Files that import each other, late imports and those for types included."""
    known = {name.removesuffix("/__init__") for name in sources}
    graph = {}
    for name, text in sources.items():
        wanted = [
            imported.removeprefix("runner.").replace(".", "/") for imported, _ in imports(text)
        ]
        parents = [path.rpartition("/")[0] for path in wanted]
        graph[name.removesuffix("/__init__")] = {p for p in (*wanted, *parents) if p in known}
    while True:
        needed = set().union(*graph.values())
        free = {name for name, needs in graph.items() if not needs & graph.keys()}
        free |= graph.keys() - needed
        if not free:
            return sorted(graph)
        graph = {name: needs - free for name, needs in graph.items() if name not in free}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {
        name_of(path): path.read_text(encoding="utf-8")
        for path in FILES
        if name_of(path) != "__init__"
    }


def test_every_folder_has_its_place(sources: dict[str, str]) -> None:
    assert {name.partition("/")[0] for name in sources} == set(ORDER) - {"demo"}


def test_imports_go_down(sources: dict[str, str]) -> None:
    assert upward(sources) == []


def test_no_files_import_each_other(sources: dict[str, str]) -> None:
    assert circles(sources) == []


def test_an_import_of_the_wrong_kind_is_found(sources: dict[str, str]) -> None:
    late = "def f():\n    from runner.run import run\n"
    assert upward({**sources, "folder/new": late}) == [
        "folder/new imports runner.run.run, which stands above it"
    ]
    one, two = "from runner.launch.two import x\n", "from runner.launch.one import y\n"
    assert circles({"launch/one": one, "launch/two": two}) == ["launch/one", "launch/two"]


def test_every_folder_says_what_belongs_there_and_what_it_imports() -> None:
    for folder in sorted(path.parent for path in FILES if path.name == "__init__.py"):
        words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        if folder != HOME:
            assert len(words.splitlines()) >= 2, folder
            assert re.search("imports? ", words, re.IGNORECASE), folder


def test_only_launch_reads_the_environment(sources: dict[str, str]) -> None:
    for name, text in sources.items():
        if not name.startswith("launch/"):
            assert not re.search(r"os\.environ|getenv", text), name


def test_only_say_prints(sources: dict[str, str]) -> None:
    for name, text in sources.items():
        if name not in ("say", "__main__"):  # which makes the streams
            assert not re.search(r"\bprint\(|sys\.std(out|err)\.write", text), name


# Case 16: a bare device type is the first GPU for every rank.
def test_no_bare_devices(sources: dict[str, str]) -> None:
    for name, text in sources.items():
        if name not in (
            "launch/devices",
            "strategies/checks/backends",
        ):  # one chooses, the other is data
            assert not re.search(r"\.cuda\(|[\"']cuda[\"']", text), name


def test_torch_stays_where_it_is_at_home(sources: dict[str, str]) -> None:
    for name, text in sources.items():
        if not name.startswith(WITH_TORCH):
            heavy = {"torch", "diffusers", "transformers", "PIL"}
            at_top = {imported.partition(".")[0] for imported, is_top in imports(text) if is_top}
            assert not heavy & at_top, name


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


BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match)


def depth(node: ast.AST) -> int:
    """Blocks within blocks; `elif` goes no deeper, a function inside begins anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def test_functions_are_short_and_flat(sources: dict[str, str]) -> None:
    found = []
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno
                if length > LONGEST_FUNCTION or depth(node) > DEEPEST_NESTING:
                    found.append(f"{name}:{node.lineno} {node.name}: {length} lines, {depth(node)}")
    assert found == []


@pytest.fixture(scope="module")
def where_modules_work() -> Path:
    return Path.cwd()


def test_no_test_works_where_make_run_leaves_images(
    tmp_path: Path, where_modules_work: Path
) -> None:
    assert Path.cwd() == tmp_path
    assert not where_modules_work.is_relative_to(HOME.parent)
