"""What a diffusers pipeline's source says of its call. Importing the class would take seconds, and
half a gigabyte, so its methods are read, and its check of the arguments is run, without it."""

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

# What every pipeline takes. Sizes are told by the model's configs, and some calls round them first;
# the callback is the runner's.
ANY = {
    "prompt": "a",
    "height": 2048,
    "width": 2048,
    "callback_on_step_end_tensor_inputs": None,
}
LISTS = ("list", "List", "tuple", "Tuple", "Sequence")


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A pipeline's `__call__`, and its `check_inputs` where it has one."""

    arguments: Mapping[str, ast.arg]
    defaults: Mapping[str, Any]  # the literal ones
    takes_any: bool  # it has **kwargs
    check: Callable[..., None] | None
    checking: CodeType | None  # how the call calls it

    def takes(self, name: str, value: Any) -> bool:
        """Whether a JSON value is of the type that the argument's annotation or default names."""
        return name not in self.arguments or _takes(self._annotation(name), value)

    def wants(self, name: str) -> str:
        """That type, as the source has it."""
        annotation = self._annotation(name)
        return ast.unparse(annotation) if annotation else "anything"

    def refusal(self, parameters: Mapping[str, Any]) -> str:
        """Why `check_inputs` refuses these parameters, in its words; nothing where it does not, or
        looks at more than the arguments, as at a part of the model."""
        if self.check is None or self.checking is None:
            return ""
        # What the call works out before is None here, and nothing is asked of that.
        values = {**dict.fromkeys(self.checking.co_names), **self.defaults, **parameters, **ANY}
        pipeline = SimpleNamespace(vae_scale_factor=1, patch_size=1)
        pipeline.check_inputs = functools.partial(self.check, pipeline)
        try:
            eval(self.checking, {**values, "self": pipeline})
        except ValueError as error:
            return str(error)
        except Exception:
            return ""
        return ""

    def _annotation(self, name: str) -> ast.expr | None:
        default = self.defaults.get(name)
        is_telling = isinstance(default, bool | int | float)
        return self.arguments[name].annotation or (
            ast.Name(type(default).__name__) if is_telling else None
        )


@functools.cache
def pipeline_call(class_name: str) -> PipelineCall | None:
    """None for a class that diffusers does not have, or that cannot be called."""
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
        {argument.arg: argument for argument in (*arguments, *given.kwonlyargs)},
        {arg.arg: value.value for arg, value in defaults if isinstance(value, ast.Constant)},
        given.kwarg is not None,
        _function(_method(class_name, "check_inputs")),
        _checking(call),
    )


def _checking(call: ast.FunctionDef) -> CodeType | None:
    """The expression by which a method calls `check_inputs`, where it does."""
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.check_inputs":
            return compile(ast.Expression(node), "check_inputs", "eval")
    return None


def _function(method: ast.FunctionDef | None) -> Callable[..., None] | None:
    """The method without its module: what it looks up there it does not find."""
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
        if wanted in data:
            for node in ast.parse(data).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return node
    return None


def _takes(annotation: ast.expr | None, value: Any) -> bool:
    """Whether a JSON value fits an annotation; true where it names what no manifest can give."""
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
