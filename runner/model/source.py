"""Classes of diffusers, as their source has them: to import one takes seconds and half a GB."""

import ast
import functools
import importlib.util
import os
import re
from pathlib import Path

__all__ = ["class_of", "home", "installed", "method_of", "module_of", "nodes_of", "tree_of"]


@functools.cache
def home() -> Path:
    """The folder of the installed diffusers."""
    found = importlib.util.find_spec("diffusers")
    return Path(found.origin).parent if found and found.origin else Path()


@functools.cache
def installed() -> str:
    """The version of the installed diffusers; "" where it does not say it."""
    found = re.search(rb'__version__ = "(.*)"', _read(home() / "__init__.py"))
    return found[1].decode() if found else ""


@functools.cache
def module_of(name: str, folder: str = "pipelines") -> Path | None:
    """The file of diffusers' folder that defines a class; None if it has no such class."""
    wanted = f"class {name}(".encode()
    files = (Path(path) for path in _files(folder) if wanted in _read(path))
    return next((path for path in files if _in(path, name)), None)


@functools.cache
def class_of(name: str, folder: str = "pipelines") -> ast.ClassDef | None:
    path = module_of(name, folder)
    return _in(path, name) if path else None


def tree_of(path: Path) -> ast.Module:
    """The source of a file."""
    return ast.parse(_read(path))


@functools.cache
def nodes_of(node: ast.AST | None) -> tuple[ast.AST, ...]:
    """All nodes below one, walked once: a class has tens of thousands."""
    return tuple(ast.walk(node)) if node else ()


def method_of(class_name: str, name: str, folder: str = "pipelines") -> ast.FunctionDef | None:
    """A method of a class or of its bases."""
    node = class_of(class_name, folder)
    if node is None:
        return None
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == name:
            return member
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return next(filter(None, (method_of(base, name, folder) for base in bases)), None)


@functools.cache
def _files(folder: str) -> list[str]:
    """As text: to make a Path of each takes longer than to read it."""
    walk = os.walk(home() / folder)
    return sorted(
        os.path.join(at, name) for at, _, names in walk for name in names if name.endswith(".py")
    )


@functools.cache
def _read(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@functools.cache
def _in(path: Path, name: str) -> ast.ClassDef | None:
    nodes = tree_of(path).body
    return next((n for n in nodes if isinstance(n, ast.ClassDef) and n.name == name), None)
