"""What the source of a diffusers pipeline says about its call.

Importing the class would take seconds and half a gigabyte. So its source is read instead, and its
own check of the arguments is run without the class.
"""

import ast
import copy
import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

__all__ = ["PipelineCall", "pipeline_call"]

# Values that every pipeline's check accepts. Sizes are checked against the model's configs instead,
# since some calls round them before the check; the callback is set by the runner.
ACCEPTED = {
    "prompt": "a",
    "height": 2048,
    "width": 2048,
    "callback_on_step_end_tensor_inputs": None,
}
LISTS = ("list", "List", "tuple", "Tuple", "Sequence")


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A pipeline's `__call__`, and its `check_inputs` if it has one."""

    arguments: Mapping[str, ast.arg]
    defaults: Mapping[str, Any]  # those that are literals
    takes_any: bool  # it has **kwargs
    check_inputs: Callable[..., None] | None
    check_call: CodeType | None  # the expression with which `__call__` calls `check_inputs`

    def takes(self, name: str, value: Any) -> bool:
        """Whether a JSON value has the type of the argument, by its annotation or its default."""
        return name not in self.arguments or _takes(self._annotation(name), value)

    def wants(self, name: str) -> str:
        """That type, as it is written in the source."""
        annotation = self._annotation(name)
        return ast.unparse(annotation) if annotation else "anything"

    def objection(self, parameters: Mapping[str, Any]) -> str:
        """Why `check_inputs` refuses these parameters, in its own words. Empty if it accepts them,
        or if it needs more than the arguments, such as a part of the model."""
        if self.check_inputs is None or self.check_call is None:
            return ""
        computed = dict.fromkeys(self.check_call.co_names)  # by the call before its check: None
        values = {**computed, **self.defaults, **parameters, **ACCEPTED}
        pipeline = SimpleNamespace(vae_scale_factor=1, patch_size=1)
        pipeline.check_inputs = functools.partial(self.check_inputs, pipeline)
        try:
            eval(self.check_call, {**values, "self": pipeline})
        except ValueError as error:
            return str(error)
        except Exception:
            return ""
        return ""

    def _annotation(self, name: str) -> ast.expr | None:
        """Of an argument; without one, the type of a default that is a number or a boolean."""
        annotation, default = self.arguments[name].annotation, self.defaults.get(name)
        if annotation is None and isinstance(default, bool | int | float):
            return ast.Name(type(default).__name__)
        return annotation


@functools.cache
def pipeline_call(class_name: str) -> PipelineCall | None:
    """None if diffusers has no such class, or if it cannot be called."""
    call = _method(class_name, "__call__")
    if call is None:
        return None
    given = call.args
    arguments = [*given.posonlyargs, *given.args]
    defaults = [
        *zip(reversed(arguments), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return PipelineCall(
        arguments={argument.arg: argument for argument in (*arguments, *given.kwonlyargs)},
        defaults={arg.arg: node.value for arg, node in defaults if isinstance(node, ast.Constant)},
        takes_any=given.kwarg is not None,
        check_inputs=_function(_method(class_name, "check_inputs")),
        check_call=_check_call(call),
    )


def _check_call(call: ast.FunctionDef) -> CodeType | None:
    """The expression with which a method calls `check_inputs`; None if it does not."""
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.check_inputs":
            return compile(ast.Expression(node), "check_inputs", "eval")
    return None


def _function(method: ast.FunctionDef | None) -> Callable[..., None] | None:
    """The method as a function, without its module: names of the module are not defined in it."""
    if method is None:
        return None
    method = copy.deepcopy(method)
    method.decorator_list, method.returns = [], None
    for node in ast.walk(method.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    scope: dict[str, Any] = {}
    exec(compile(ast.Module([method], type_ignores=[]), "check_inputs", "exec"), scope)
    function: Callable[..., None] = scope[method.name]
    return function


def _method(class_name: str, name: str) -> ast.FunctionDef | None:
    node = _class(class_name)
    if node is None:
        return None
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == name:
            return member
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return next(filter(None, (_method(base, name) for base in bases)), None)


@functools.cache
def _class(name: str) -> ast.ClassDef | None:
    found = importlib.util.find_spec("diffusers")
    home = Path(found.origin).parent / "pipelines" if found and found.origin else Path()
    wanted = f"class {name}(".encode()
    for path in sorted(home.rglob("*.py")):
        data = path.read_bytes()
        nodes = ast.parse(data).body if wanted in data else ()
        for node in nodes:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
    return None


def _takes(annotation: ast.expr | None, value: Any) -> bool:
    """Whether a JSON value fits an annotation. True for types that JSON cannot express."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _takes(left, value) or _takes(right, value)
        case ast.Subscript(value=ast.Name("Optional"), slice=inner):
            return _takes(inner, value)
        case ast.Subscript(value=ast.Name("Union"), slice=ast.Tuple(elts=kinds)):
            return any(_takes(kind, value) for kind in kinds)
        case ast.Constant(None):
            return value is None
        case ast.Name("bool"):
            return isinstance(value, bool)
        case ast.Name("int" | "float"):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name("str"):
            return isinstance(value, str)
        case ast.Name("dict" | "Dict") | ast.Subscript(value=ast.Name("dict" | "Dict")):
            return isinstance(value, dict)
        case ast.Name(name) if name in LISTS:
            return isinstance(value, list)
        case ast.Subscript(value=ast.Name(name), slice=inner) if name in LISTS:
            kinds = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return isinstance(value, list) and all(
                any(_takes(kind, item) for kind in kinds) for item in value
            )
    return True
