"""What the source of a diffusers pipeline says about its call.

Importing the class would take seconds and half a gigabyte. So its source is read instead, and its
own check of the arguments is run without the class.
"""

import __future__

import ast
import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, SimpleNamespace
from typing import Any

from runner.model.source import class_of, method_of, nodes_of

__all__ = ["SETUP", "PipelineCall", "as_call_values", "fits", "pipeline_call"]

# What stands among the parameters of a task, but is no argument of the call: it sets up the
# pipeline before it.
SETUP = ("scheduler", "loras")

# Values that every pipeline's check accepts. Sizes are checked against the model's configs instead,
# since some calls round them before the check; the callback is set by the runner.
ACCEPTED = {
    "prompt": "a",
    "height": 2048,
    "width": 2048,
    "callback_on_step_end_tensor_inputs": None,
}
WRITABLE = ("Any", "Dict", "Literal", "bool", "dict", "float", "int", "object", "str")
LISTS = ("list", "List", "tuple", "Tuple", "Sequence")
# Arguments that calls concatenate with tuples or compare with them. YAML has lists only.
TUPLES = (
    "attn_res",
    "crops_coords_top_left",
    "micro_conditioning_crop_coord",
    "negative_crops_coords_top_left",
    "negative_original_size",
    "negative_target_size",
    "original_size",
    "target_size",
    "text_encoder_out_layers",
)
# Calls refuse a whole number here.
FLOATS = ("controlnet_conditioning_scale",)


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A pipeline's `__call__`, and its `check_inputs` if it has one."""

    name: str  # of the class
    node: ast.FunctionDef
    arguments: Mapping[str, ast.arg]  # without self
    defaults: Mapping[str, ast.expr]
    values: Mapping[str, Any]  # the defaults that are literals
    rest: Mapping[str, int]  # what the call reads from its **kwargs → the line of its source
    check_inputs: Callable[..., None] | None
    check_call: CodeType | None  # the expression with which `__call__` calls `check_inputs`

    @property
    def required(self) -> list[str]:
        """Arguments without a default."""
        return [name for name in self.arguments if name not in self.defaults]

    def can_be_written(self, name: str) -> bool:
        """Whether some value in a manifest can have the type of the argument."""
        annotation = self._annotation(name)
        return annotation is None or is_json(annotation)

    def takes(self, name: str, value: Any) -> bool:
        """Whether a JSON value has the type of the argument, by its annotation or its default."""
        if name not in self.arguments:
            return True
        if value is None:
            return self._takes_null(name)
        annotation = self._annotation(name)
        return annotation is None or fits(annotation, value)

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
        values = {**computed, **self.values, **parameters, **ACCEPTED}
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
        """Of an argument; without one, the type of a default that is a number or a boolean.
        Schedulers take fractions of timesteps, whatever the annotation says."""
        annotation, default = self.arguments[name].annotation, self.values.get(name)
        if annotation is None and isinstance(default, bool | int | float):
            return ast.Name("bool" if isinstance(default, bool) else "float")
        if name.endswith("timesteps") and annotation and "list[int]" in ast.unparse(annotation):
            return ast.parse("list[float] | None", mode="eval").body
        return annotation

    def _takes_null(self, name: str) -> bool:
        """By the default, or since the class looks for it. Annotations with None are not enough:
        calls compare such arguments with numbers."""
        is_default = name in self.defaults and self.values.get(name, name) is None
        return is_default or self._looks_for(name)

    def _looks_for(self, name: str) -> bool:
        """Whether the class compares a variable of this name with None, or hands it to a method
        that does not need it."""
        own = set(ast.walk(self.node.args))
        for inner in nodes_of(class_of(self.name)):
            match inner:
                case ast.Compare(ast.Name(found), [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
                    if found == name:
                        return True
                case ast.arg(found, annotation) if annotation is not None and inner not in own:
                    if found == name and fits(annotation, None):
                        return True
        return False


@functools.cache
def pipeline_call(class_name: str) -> PipelineCall | None:
    """None if diffusers has no such class, or if it cannot be called."""
    call = method_of(class_name, "__call__")
    if call is None:
        return None
    given = call.args
    arguments = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(reversed(arguments), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    defaults = {arg.arg: node for arg, node in pairs if node is not None}
    return PipelineCall(
        name=class_name,
        node=call,
        arguments={argument.arg: argument for argument in (*arguments[1:], *given.kwonlyargs)},
        defaults=defaults,
        values={n: node.value for n, node in defaults.items() if isinstance(node, ast.Constant)},
        rest=_read_from_rest(call),
        check_inputs=_function(method_of(class_name, "check_inputs")),
        check_call=_check_call(call),
    )


def as_call_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A task's parameters as a pipeline call takes them: tuples where it needs tuples."""
    return {n: _as_call_value(n, value) for n, value in parameters.items() if n not in SETUP}


def _as_call_value(name: str, value: Any) -> Any:
    if name in FLOATS and type(value) is int:
        return float(value)
    return tuple(value) if name in TUPLES and isinstance(value, list) else value


def _read_from_rest(call: ast.FunctionDef) -> dict[str, int]:
    """The names that a call reads from its **kwargs: `kwargs.pop("x")`, `.get("x")` and
    `kwargs["x"]`. To look whether one is there is not to read it."""
    rest = call.args.kwarg.arg if call.args.kwarg else ""
    found: dict[str, int] = {}
    for node in nodes_of(call):
        match node:
            case ast.Call(
                ast.Attribute(ast.Name(name), "pop" | "get"), [ast.Constant(str(key)), *_]
            ) | ast.Subscript(ast.Name(name), ast.Constant(str(key))):
                if name == rest:
                    found.setdefault(key, node.lineno)
    return found


def _check_call(call: ast.FunctionDef) -> CodeType | None:
    """The expression with which a method calls `check_inputs`; None if it does not."""
    for node in nodes_of(call):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.check_inputs":
            return compile(ast.Expression(node), "check_inputs", "eval")
    return None


def _function(method: ast.FunctionDef | None) -> Callable[..., None] | None:
    """The method as a function, without its module: names of the module are not defined in it."""
    if method is None:
        return None
    method, scope = copy.copy(method), dict[str, Any]()
    method.decorator_list = []
    module, unread = ast.Module([method], type_ignores=[]), __future__.annotations.compiler_flag
    exec(compile(module, "check_inputs", "exec", flags=unread), scope)  # annotations are not read
    function: Callable[..., None] = scope[method.name]
    return function


def fits(annotation: ast.expr, value: Any) -> bool:
    """Whether a JSON value fits an annotation. False for types that JSON cannot express."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return fits(left, value) or fits(right, value)
        case ast.Subscript(value=ast.Name("Optional"), slice=inner):
            return value is None or fits(inner, value)
        case ast.Subscript(value=ast.Name("Union"), slice=ast.Tuple(elts=kinds)):
            return any(fits(kind, value) for kind in kinds)
        case ast.Constant(None):
            return value is None
        case ast.Name("Any" | "object"):
            return True
        case ast.Subscript(value=ast.Name("Literal")):
            choices = ast.literal_eval(annotation.slice)
            return value in (choices if isinstance(choices, tuple) else (choices,))
        case ast.Name("bool"):
            return isinstance(value, bool)
        case ast.Name("int"):
            return isinstance(value, int) and not isinstance(value, bool)
        case ast.Name("float"):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name("str"):
            return isinstance(value, str)
        case ast.Name("dict" | "Dict") | ast.Subscript(value=ast.Name("dict" | "Dict")):
            return isinstance(value, dict)
        case ast.Name(name) if name in LISTS:
            return isinstance(value, list)
        case ast.Subscript(value=ast.Name(name), slice=inner) if name in LISTS:
            return isinstance(value, list) and _fit(name.lower(), inner, value)
    return False


def _fit(kind: str, inner: ast.expr, values: list[Any]) -> bool:
    """Whether a list's values fit `inner` of `tuple[inner]` or `list[inner]`."""
    if kind == "tuple" and isinstance(inner, ast.Tuple):
        pairs = zip(inner.elts, values, strict=False)
        return len(inner.elts) == len(values) and all(fits(one, value) for one, value in pairs)
    return all(fits(inner, value) for value in values)


def is_json(annotation: ast.expr) -> bool:
    """Whether JSON can express some value of a type, other than null and an empty list."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_json(left) or is_json(right)
        case ast.Subscript(value=ast.Name("Optional"), slice=inner):
            return is_json(inner)
        case ast.Subscript(value=ast.Name("Union"), slice=ast.Tuple(elts=kinds)):
            return any(map(is_json, kinds))
        case ast.Subscript(value=ast.Name(name), slice=inner) if name in LISTS:
            return is_json(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case ast.Name(name) | ast.Subscript(value=ast.Name(name)):
            return name in (*WRITABLE, *LISTS)
    return False
