"""The source of diffusers, read without importing it, which would take seconds."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

__all__ = [
    "defines",
    "exports",
    "is_pipeline_module",
    "needed_backends",
    "needed_packages",
    "required_components",
]


OPTIONAL = "_optional_components"
GUARD = re.compile(r"is_(\w+)_available\(\)")


@functools.cache
def _home() -> Path:
    found = importlib.util.find_spec("diffusers")
    return Path(found.origin).parent if found and found.origin else Path()


def exports(class_name: str) -> bool:
    """Whether diffusers exports a class of this name."""
    text = (_home() / "__init__.py").read_text(encoding="utf-8")
    return f'"{class_name}"' in text and class_name[:1].isupper()


def is_pipeline_module(library: str) -> bool:
    """Whether diffusers has a pipeline module of that name (a safety checker is in one)."""
    return library.isidentifier() and (_home() / "pipelines" / library).is_dir()


def defines(library: str, class_name: str) -> bool:
    """Whether a pipeline module of diffusers has a class of this name."""
    wanted = f"class {class_name}(".encode()
    paths = (_home() / "pipelines" / library).rglob("*.py")
    return class_name.isidentifier() and any(wanted in path.read_bytes() for path in paths)


@functools.cache
def _module(class_name: str) -> tuple[ast.Module, ast.ClassDef] | None:
    """The module of a pipeline, and its class."""
    wanted = f"class {class_name}(".encode()
    for path in sorted((_home() / "pipelines").rglob("*.py")):
        data = path.read_bytes()
        module = ast.parse(data) if wanted in data else ast.Module([], [])
        for node in module.body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                return module, node
    return None


def required_components(class_name: str) -> list[str]:
    """The components without which diffusers makes no pipeline; none for an unknown class."""
    found = _module(class_name)
    if found is None:
        return []
    optional, required = list[str](), list[str]()
    for member in found[1].body:
        if isinstance(member, ast.Assign) and ast.unparse(member.targets[0]) == OPTIONAL:
            optional = [str(name) for name in ast.literal_eval(member.value)]
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            given = member.args.args[1:]
            required = [arg.arg for arg in given[: len(given) - len(member.args.defaults)]]
    return [name for name in required if name not in optional]


def needed_packages(class_name: str) -> list[str]:
    """Modules that the pipeline's file imports where they are there, and then uses without asking
    whether they are."""
    found = _module(class_name)
    if found is None:
        return []
    module, needed = found[0], set[str]()
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    used = {node.id for f in functions for node in ast.walk(f) if isinstance(node, ast.Name)}
    for node in module.body:
        if isinstance(node, ast.If) and not _is_asked_again(node, used):
            needed |= {name for name, alias in _imports(node) if alias in used}
    return sorted(needed)


def _is_asked_again(node: ast.If, used: set[str]) -> bool:
    """Whether the functions ask once more, or look at a flag that is set beside the imports."""
    guards = GUARD.findall(ast.unparse(node.test))
    sets_flag = any(isinstance(line, ast.Assign) for line in node.body)
    return not guards or sets_flag or any(f"is_{guard}_available" in used for guard in guards)


def _imports(node: ast.AST) -> list[tuple[str, str]]:
    """The modules that are imported below a node, and the names that they get."""
    found = []
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            found += [(a.name.partition(".")[0], a.asname or a.name) for a in child.names]
    return found


def needed_backends(class_name: str) -> list[str]:
    """What diffusers wants installed for a class, in its own names; nothing for most classes. They
    stand in the stand-ins that it exports where something is not installed."""
    for path in sorted((_home() / "utils").glob("dummy_*_objects.py")):
        text = path.read_text(encoding="utf-8")
        match = re.search(rf"class {class_name}\(.*\n    _backends = (\[.*\])", text)
        if match:
            return [str(name) for name in ast.literal_eval(match[1])]
    return []
