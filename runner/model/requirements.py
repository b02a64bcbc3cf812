"""What a pipeline class of diffusers needs to be there, read from its source."""

import ast
import functools
import re

from runner.model.source import class_of, home, module_of, tree_of

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


def exports(class_name: str) -> bool:
    """Whether diffusers exports a class of this name."""
    text = (home() / "__init__.py").read_text(encoding="utf-8")
    return f'"{class_name}"' in text and class_name[:1].isupper()


def is_pipeline_module(library: str) -> bool:
    """Whether diffusers has a pipeline module of that name (a safety checker is in one)."""
    return library.isidentifier() and (home() / "pipelines" / library).is_dir()


def defines(library: str, class_name: str) -> bool:
    """Whether a pipeline module of diffusers has a class of this name."""
    wanted = f"class {class_name}(".encode()
    paths = (home() / "pipelines" / library).rglob("*.py")
    return class_name.isidentifier() and any(wanted in path.read_bytes() for path in paths)


def required_components(class_name: str) -> list[str]:
    """The components without which diffusers makes no pipeline; none for an unknown class."""
    node = class_of(class_name)
    optional, required = list[str](), list[str]()
    for member in node.body if node else ():
        if isinstance(member, ast.Assign) and ast.unparse(member.targets[0]) == OPTIONAL:
            optional = [str(name) for name in ast.literal_eval(member.value)]
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            given = member.args.args[1:]
            required = [arg.arg for arg in given[: len(given) - len(member.args.defaults)]]
    return [name for name in required if name not in optional]


@functools.cache
def needed_packages(class_name: str) -> list[str]:
    """Modules that the pipeline's file imports where they are there, and then uses without asking
    whether they are."""
    path = module_of(class_name)
    if path is None:
        return []
    module, needed = tree_of(path), set[str]()
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
    for path in sorted((home() / "utils").glob("dummy_*_objects.py")):
        text = path.read_text(encoding="utf-8")
        match = re.search(rf"class {class_name}\(.*\n    _backends = (\[.*\])", text)
        if match:
            return [str(name) for name in ast.literal_eval(match[1])]
    return []
