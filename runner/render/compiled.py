"""`compile: true`: the denoiser's repeated blocks as compiled code, kept for later runs.

In float32 each shape of a block's inputs (size, images of a call, length of the text) is compiled
for itself. Its code then depends on nothing else, so that an image has the same bits whatever a
rank made before it, and with any number of processes. In half precision, where no bits are
promised, torch's own way compiles less: the second shape is compiled for all later ones.

Compiled code never counts in a fingerprint: as with a strategy, the image is the same to 1e-5.
"""

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runner.errors import LaunchError, ModelError, StrategyError
from runner.launch.compiler import c_compiler, compile_cache
from runner.strategies import Conditions, StrategyBase

if TYPE_CHECKING:
    import torch

__all__ = ["check", "check_machine", "compile_blocks", "is_compile_error", "uncompile_blocks"]

DENOISERS = ("transformer", "transformer_2", "unet")
# Past so many shapes of one block torch would go on uncompiled without a word; also, a block whose
# code is never used again would be compiled at every step for ever.
MOST_SHAPES = 1000
INSTEAD = "or use compile: false"


def check(conditions: Conditions, strategy: StrategyBase, on_out_of_memory: str) -> None:
    """What rules compiled blocks out, as far as configs tell. Raises ModelError, StrategyError."""
    if strategy.not_compiled:
        raise StrategyError(f"compile: {strategy.not_compiled}; use another strategy, {INSTEAD}")
    if on_out_of_memory == "offload":
        raise StrategyError(
            f"compile: on_out_of_memory: offload would move compiled blocks between devices; use "
            f"tile, {INSTEAD}"
        )
    configs = conditions.configs
    blocks = configs.plan_of("_repeated_blocks")
    if blocks is not None and not blocks:  # None: a class of the model's own, known once loaded
        raise ModelError(_without_blocks(configs.denoiser_class))


def check_machine(device: "torch.device") -> str:
    """Where this machine keeps compiled code, in words for the user. Raises LaunchError where it
    cannot be kept, or nothing can be compiled."""
    folder = compile_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise LaunchError(
            f"compile: {folder}, where compiled code is kept: {error.strerror}; set "
            f"TORCHINDUCTOR_CACHE_DIR to a folder that can be written, {INSTEAD}"
        ) from None
    lacking = _lacking_on_cpu() if device.type == "cpu" else _lacking_on(device)
    if lacking:
        raise LaunchError(f"compile: {lacking}, {INSTEAD}")
    return (
        f"compile: an image of a new size takes longer, while blocks are compiled; the code is "
        f"kept in {folder}"
    )


def _lacking_on_cpu() -> str:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "no C++ compiler here; install g++, name another in CXX"
    return ""


def _lacking_on(device: "torch.device") -> str:
    from torch.utils._triton import has_triton

    if not has_triton():
        return f"no triton here that takes this {device.type} device; install it"
    return "" if c_compiler() else "no C compiler here, which triton needs; install gcc"


def compile_blocks(pipe: Any, dtype: str, processes: int) -> None:
    """Have the blocks of a loaded pipeline compiled when they are first called. The kept code is
    safe to share: torch renames whole files into place, and locks what compilers write. `processes`
    of this node share its cores: torch would start up to 32 compilers in each.

    Raises ModelError where the denoiser names no blocks, StrategyError where they lie apart.
    """
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    most = max(1, len(os.sched_getaffinity(0)) // processes)
    inductor.compile_threads = min(inductor.compile_threads or most, most)
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = MOST_SHAPES
    dynamo.fail_on_recompile_limit_hit = True
    is_exact = dtype == "float32"
    for denoiser in _denoisers(pipe):
        if not getattr(denoiser, "_repeated_blocks", None):
            raise ModelError(_without_blocks(type(denoiser).__name__))
        if _lies_apart(denoiser):
            raise StrategyError(
                f"compile: the {type(denoiser).__name__} does not lie whole on one device, and "
                f"what moves its parts is compiled anew for every block; use a strategy or "
                f"max_memory that keeps it whole, {INSTEAD}"
            )
        denoiser.compile_repeated_blocks(
            dynamic=False if is_exact else None,
            # No kernel is chosen by timing, which may come out otherwise on the next rank.
            options={"deterministic": is_exact},
        )


def uncompile_blocks(pipe: Any) -> None:
    """Take back what `compile_blocks` did."""
    for denoiser in _denoisers(pipe):
        for module in denoiser.modules():
            module._compiled_call_impl = None


def is_compile_error(error: Exception) -> bool:
    """Whether torch could not compile: no fault of the image, which can be made without."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def _denoisers(pipe: Any) -> Iterator[Any]:
    return filter(None, (getattr(pipe, name, None) for name in DENOISERS))


def _lies_apart(denoiser: Any) -> bool:
    """Whether accelerate moves parts of it: each block would be code of its own."""
    return any(hasattr(part, "_hf_hook") for part in denoiser.modules() if part is not denoiser)


def _without_blocks(name: str) -> str:
    return f"compile: {name} names no repeated blocks in diffusers; use compile: false"
