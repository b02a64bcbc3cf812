"""Whether a pipeline's call can set the steps of its scheduler. Many pipelines give sigmas of their
own, or a shift `mu`, and not every scheduler's `set_timesteps` takes them."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from runner.model.signature import PipelineCall
from runner.model.source import method_of, nodes_of

__all__ = ["arguments_of_set_timesteps", "schedule_fault"]

# The arguments of a pipeline's `retrieve_timesteps` that it handles itself; all others it hands on.
OWN = ("scheduler", "num_inference_steps", "device", "timesteps", "sigmas")
# Who takes what: the argument → one that takes it. Sigmas and shifts belong to flow matching.
TAKERS = {
    "max_timesteps": "SCMScheduler",
    "intermediate_timesteps": "SCMScheduler",
    "original_inference_steps": "LCMScheduler",
}


def schedule_fault(call: PipelineCall, scheduler: str, config: Mapping[str, Any]) -> str:
    """Why this scheduler of diffusers fails in every image, and what to do; empty where the source
    does not show that it does."""
    given = [*_given(call.node, uses_flow_sigmas=bool(config.get("use_flow_sigmas")))]
    taken = arguments_of_set_timesteps(scheduler) if given else None
    if taken is None:
        return ""
    for name in given:
        if name not in taken:
            other = TAKERS.get(name, "FlowMatchEulerDiscreteScheduler")
            fault = f"{call.name} gives its scheduler {name}, which {scheduler} does not take"
            return f"{fault}; use another scheduler, such as {other}"
    return ""


def arguments_of_set_timesteps(scheduler: str) -> set[str] | None:
    """None where diffusers has no such class, or where it takes any argument."""
    setter = method_of(scheduler, "set_timesteps", "schedulers")
    if setter is None or setter.args.kwarg:
        return None
    return {one.arg for one in (*setter.args.args, *setter.args.kwonlyargs)}


def _given(node: ast.FunctionDef, *, uses_flow_sigmas: bool) -> Iterator[str]:
    """What a call hands to `set_timesteps` for each image, besides the number of steps."""
    for found in _settings(node):
        named = dict(zip(OWN, found.args, strict=False))
        named |= {one.arg: one.value for one in found.keywords if one.arg}
        for one in found.keywords:
            if one.arg is None:  # **scheduler_kwargs
                named |= _literal(node, one.value)
        if "sigmas" in named and _makes_sigmas(node, uses_flow_sigmas=uses_flow_sigmas):
            yield "sigmas"
        yield from (name for name in named if name not in OWN)


def _settings(node: ast.FunctionDef) -> Iterator[ast.Call]:
    """`… = retrieve_timesteps(self.scheduler, …)`, where no condition comes before it."""
    for statement in node.body:
        match statement:
            case ast.Assign(value=ast.Call(ast.Name("retrieve_timesteps"), [first, *_]) as found):
                if ast.unparse(first) == "self.scheduler":
                    yield found


def _makes_sigmas(node: ast.FunctionDef, *, uses_flow_sigmas: bool) -> bool:
    """Whether there are sigmas where the caller gave none: `sigmas = … if sigmas is None else …`,
    with no other word on them but `if ….use_flow_sigmas: sigmas = None`."""
    makes = False
    for statement in node.body:
        if _assigns_sigmas(statement):
            makes = True
        elif any(map(_assigns_sigmas, nodes_of(statement))):
            if "use_flow_sigmas" not in _condition(statement):
                return False  # only under a condition that is not read here
            makes = makes and not uses_flow_sigmas
    return makes


def _condition(statement: ast.stmt) -> str:
    return ast.unparse(statement.test) if isinstance(statement, ast.If) else ""


def _assigns_sigmas(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "sigmas"


def _literal(node: ast.FunctionDef, value: ast.expr) -> dict[str, ast.expr]:
    """The keys of a dictionary that the call writes out: `scheduler_kwargs = {"mu": mu}`."""
    for statement in node.body:
        match statement:
            case ast.Assign([ast.Name(found)], ast.Dict(keys, values)):
                if isinstance(value, ast.Name) and found == value.id:
                    pairs = zip(keys, values, strict=True)
                    return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}
    return {}
