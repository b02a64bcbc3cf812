"""Which device holds which module of a model, for a budget of bytes: a pure function of both, for
what is loaded and for what `plan --devices` says.

Components lie whole on the GPUs where all of them fit so, each on the one with the most room left.
Else they are split. Only blocks that the model itself says must not be split may lie anywhere: they
are called as a whole, so their weights can be fetched when they are. All else (embeddings, norms,
the decoder) is read by the code around it as well, and stays on a device that computes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.errors import StrategyError
from runner.model.configs import ModelConfigs
from runner.strategies.estimate.sizes import empty
from runner.units import gib

if TYPE_CHECKING:
    import torch

__all__ = ["Budget", "Part", "Places", "by_use", "held", "parts_of", "placed"]

Budget = Mapping[int | str, int]  # bytes of weights by device: a GPU's number on the node, or "cpu"
Places = dict[str, int | str]  # a component's modules → a device of the budget, or "disk"


class Part(NamedTuple):
    """A piece of a component that lies on one device."""

    component: str
    name: str  # of the module, parameter or buffer; "" for the whole component
    size: int  # bytes
    is_block: bool


def by_use(configs: ModelConfigs) -> list[str]:
    """The components with weights, the denoiser first: it is called most, and its blocks get the
    best places."""
    return sorted(configs.networks, key=lambda name: name != configs.denoiser)


def parts_of(configs: ModelConfigs, component: str, dtype: "torch.dtype") -> list[Part]:
    """All of a component, in the order of its modules. The decoder is one part: pipelines call its
    `decode`, not the model. Raises ModelError."""
    model = empty(configs, component)
    blocks = set() if component == "vae" else set(getattr(model, "_no_split_modules", None) or ())
    # A model is on the device of its first weight, as pipelines see it.
    first = next((name for name, _ in model.named_parameters()), "")
    counted: set[int] = set()  # a weight that two modules share counts once

    def size(module: Any) -> int:
        new = {id(one): one for one in (*module.parameters(), *module.buffers())}
        total = sum(_bytes(one, dtype) for key, one in new.items() if key not in counted)
        counted.update(new)
        return total

    def is_block(name: str, module: Any) -> bool:
        return type(module).__name__ in blocks and name != "" and not first.startswith(f"{name}.")

    def walk(name: str, module: Any) -> Iterator[Part]:
        prefix = f"{name}." if name else ""
        if is_block(name, module):
            yield Part(component, name, size(module), is_block=True)
        elif not any(is_block(prefix + inner, m) for inner, m in module.named_modules() if inner):
            yield Part(component, name, size(module), is_block=False)
        else:
            for own, tensor in (
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            ):
                counted.add(id(tensor))
                yield Part(component, prefix + own, _bytes(tensor, dtype), is_block=False)
            for child, inside in module.named_children():
                yield from walk(prefix + child, inside)

    return [*walk("", model)]


def _bytes(tensor: "torch.Tensor", dtype: "torch.dtype") -> int:
    size = dtype.itemsize if tensor.is_floating_point() else tensor.element_size()
    return tensor.numel() * size


def placed(parts: Sequence[Part], budget: Budget) -> dict[str, Places]:
    """Component → where its modules go. Where not all fits, the first parts get the best places.

    Raises StrategyError where there is no room for what must lie on a device that computes.
    """
    computing = [device for device in budget if device != "cpu"] or ["cpu"]
    return _whole(parts, budget, computing) or _split(parts, budget, computing)


def held(parts: Sequence[Part], places: Mapping[str, Places]) -> dict[int | str, int]:
    """Device → bytes of the parts that lie there."""
    found: dict[int | str, int] = {}
    for part in parts:
        of = places[part.component]
        device = of[""] if "" in of else of[part.name]
        found[device] = found.get(device, 0) + part.size
    return found


def _whole(
    parts: Sequence[Part], budget: Budget, computing: Sequence[int | str]
) -> dict[str, Places] | None:
    """Each component on one device, the largest first; None where one does not fit."""
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.component] = sizes.get(part.component, 0) + part.size
    left = {device: budget[device] for device in computing}
    found: dict[str, Places] = {}
    for component in sorted(sizes, key=lambda name: -sizes[name]):
        device = max(computing, key=lambda device: left[device])  # the first of equal ones
        left[device] -= sizes[component]
        if left[device] < 0:
            return None
        found[component] = {"": device}
    return found


def _split(
    parts: Sequence[Part], budget: Budget, computing: Sequence[int | str]
) -> dict[str, Places]:
    """What computes first, then blocks in their order, device after device; those that fit nowhere
    on disk. Raises StrategyError."""
    left = dict(budget)
    found: dict[str, Places] = {part.component: {} for part in parts}
    for component in found:
        fixed = [part for part in parts if part.component == component and not part.is_block]
        size = sum(part.size for part in fixed)
        device = next((device for device in computing if left[device] >= size), None)
        if device is None:
            raise StrategyError(_too_little(parts, component, size, budget))
        left[device] -= size
        found[component] |= {part.name: device for part in fixed}
    order = [*computing, *(["cpu"] if "cpu" in budget and "cpu" not in computing else []), "disk"]
    left["disk"] = sum(part.size for part in parts)
    for component, places in found.items():
        now = 0  # a component's blocks do not go back to a device
        for part in parts:
            if part.component != component or not part.is_block:
                continue
            while left[order[now]] < part.size:
                now += 1
            places[part.name] = order[now]
            left[order[now]] -= part.size
    return {component: _joined(places) for component, places in found.items()}


def _joined(places: Places) -> Places:
    devices = set(places.values())
    return {"": devices.pop()} if len(devices) == 1 else places


def _too_little(parts: Sequence[Part], component: str, size: int, budget: Budget) -> str:
    """The words for a budget without room for what must lie on a device that computes."""
    fixed = sum(part.size for part in parts if not part.is_block)
    if set(budget) == {"cpu"}:
        return (
            f"strategy: max_memory: cpu: {_size(fixed)} of the weights cannot be read from disk "
            f"block by block and must stay in memory, and {_size(budget['cpu'])} are allowed; use "
            f"cpu: {_rounded_up(fixed)} or more"
        )
    return (
        f"strategy: max_memory: {_size(size)} of {component} must lie on one GPU, and none has so "
        f"much room; allow a GPU {_rounded_up(fixed)} or more"
    )


def _size(size: int) -> str:
    return gib(size) if size >= 2**27 else f"{size / 1e6:.3g} MB"


def _rounded_up(size: int) -> str:
    """As max_memory takes it."""
    unit, name = (10**6, "MB") if size > 10**6 else (1000, "KB")
    return f"{-(-size // unit)}{name}"
