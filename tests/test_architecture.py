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
FILES = sorted(HOME.rglob("*.py"))

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
    "gallery",
    "render",
    "prepare",
    "commands",
    "first_image",
    "lead",
    "worker",
    "report",
    "monitor",
    "run",
    "options",
    "cli",
    "__main__",
)
WITH_TORCH = ("render", "model/text_memory", "strategies")  # where torch may be imported at the top
LONGEST_FUNCTION, DEEPEST_NESTING = 60, 3
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
HEAVY = {"torch", "diffusers", "transformers", "accelerate", "PIL"}


def name_of(path: Path) -> str:
    """`folder/journal`."""
    return path.relative_to(HOME).with_suffix("").as_posix()


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """Every module that a source imports, in full, and whether at the top of the file."""
    tree = ast.parse(text)
    late = {id(node) for place in ast.walk(tree) if is_late(place) for node in ast.walk(place)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                (f"{node.module}.{alias.name}", id(node) not in late) for alias in node.names
            )


def is_late(node: ast.AST) -> bool:
    """Whether what stands below is not run when the file is imported."""
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    return is_for_types or isinstance(node, FUNCTIONS)


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
def all_sources() -> dict[str, str]:
    return {
        name_of(path): path.read_text(encoding="utf-8")
        for path in FILES
        if name_of(path) != "__init__"
    }


@pytest.fixture(scope="module")
def sources(all_sources: dict[str, str]) -> dict[str, str]:
    """Without demo/, whose training scripts are programs of their own."""
    return {name: text for name, text in all_sources.items() if not name.startswith("demo/")}


def test_every_folder_has_its_place(all_sources: dict[str, str]) -> None:
    assert {name.partition("/")[0] for name in all_sources} == set(ORDER)


def test_imports_go_down(all_sources: dict[str, str]) -> None:
    assert upward(all_sources) == []


def test_no_files_import_each_other(all_sources: dict[str, str]) -> None:
    assert circles(all_sources) == []


def test_an_import_of_the_wrong_kind_is_found(sources: dict[str, str]) -> None:
    late = "def f():\n    from runner.run import run\n"
    assert upward({**sources, "folder/new": late}) == [
        "folder/new imports runner.run.run, which stands above it"
    ]
    one, two = "from runner.launch.two import x\n", "from runner.launch.one import y\n"
    assert circles({"launch/one": one, "launch/two": two}) == ["launch/one", "launch/two"]


def test_an_import_at_the_top_is_found() -> None:
    for text in (
        "import torch",
        "try:\n    import torch\nexcept E: ...",
        "class A:\n    import torch",
    ):
        assert list(imports(text)) == [("torch", True)]
    for text in ("def f():\n    import torch", "if TYPE_CHECKING:\n    import torch"):
        assert list(imports(text)) == [("torch", False)]


def test_every_folder_says_what_belongs_there_and_what_it_imports() -> None:
    for folder in sorted(path.parent for path in FILES if path.name == "__init__.py"):
        words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        if folder != HOME:
            assert len(words.splitlines()) >= 2, folder
            assert re.search("imports? ", words, re.IGNORECASE), folder


def test_only_launch_reads_the_environment(sources: dict[str, str]) -> None:
    for name, text in sources.items():
        if not name.startswith("launch/"):
            assert not re.search(r"\benviron\b|\bgetenv\b", text), name


def test_only_say_prints(sources: dict[str, str]) -> None:
    for name, text in sources.items():
        if name not in ("say", "__main__"):  # which makes the streams
            assert not re.search(r"\bprint\(|\bstd(out|err)\.write", text), name


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
            at_top = {imported.partition(".")[0] for imported, is_top in imports(text) if is_top}
            assert not HEAVY & at_top, name


MANIFEST = str(HOME.parent / "manifests/job.yaml")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([command, MANIFEST] for command in ("validate", "plan", "status", "stop"))],
)
def test_torch_is_not_imported_to_look_at_a_manifest(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom runner.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.TryStar, ast.Match)
BLOCKS += (ast.AsyncFor, ast.AsyncWith)


def depth(node: ast.AST) -> int:
    """Blocks within blocks; `elif` goes no deeper, a function inside begins anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        is_elif = isinstance(node, ast.If) and child in node.orelse and is_below(child, node)
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def is_below(child: ast.AST, node: ast.AST) -> bool:
    """Whether it begins in the same column, as `elif` does and an `if` within `else` does not."""
    return isinstance(child, ast.If) and child.col_offset == getattr(node, "col_offset", None)


def test_depth_counts_what_a_reader_sees() -> None:
    assert depth(ast.parse("if a: ...\nelif b: ...\nelif c: ...")) == 1
    assert depth(ast.parse("if a: ...\nelse:\n  if b:\n    with c: ...")) == 3
    assert (
        depth(ast.parse("for a in b:\n  try:\n    while c:\n      if d: ...\n  except* E: ..."))
        == 4
    )


def test_functions_are_short_and_flat(sources: dict[str, str]) -> None:
    found = []
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS):
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
