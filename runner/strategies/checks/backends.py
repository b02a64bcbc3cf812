"""What diffusers' attention backends can do under context parallel: data, which a test compares
with diffusers. Only backends that can be tested are listed: those of CPUs and CUDA."""

from typing import Literal, NamedTuple

from runner.errors import StrategyError
from runner.strategies.checks.conditions import Conditions
from runner.units import install_line

__all__ = ["BACKENDS", "Backend", "Needs", "check_package", "fault"]

Backend = Literal[
    "native",
    "_native_cudnn",
    "_native_flash",
    "flash",
    "flash_hub",
    "flash_varlen_hub",
    "_flash_3_hub",
    "_flash_3_varlen_hub",
    "sage",
    "sage_hub",
]


class Abilities(NamedTuple):
    package: str = ""  # to install beside torch
    device: str = "cuda"  # "": any
    float32: bool = False
    masks: bool = False
    lse: bool = True  # returns the log-sum-exp, by which ring attention merges its parts


BACKENDS: dict[Backend, Abilities] = {
    "native": Abilities(device="", float32=True, masks=True, lse=False),
    # diffusers hands it boolean masks, which its kernel takes for numbers.
    "_native_cudnn": Abilities(),
    "_native_flash": Abilities(),
    "flash": Abilities("flash-attn>=2.6.3"),
    "flash_hub": Abilities("kernels>=0.12"),
    "flash_varlen_hub": Abilities("kernels>=0.12", masks=True),
    "_flash_3_hub": Abilities("kernels>=0.12"),
    "_flash_3_varlen_hub": Abilities("kernels>=0.12", masks=True),
    "sage": Abilities("sageattention>=2.1.1"),
    "sage_hub": Abilities("kernels>=0.12"),
}


class Needs(NamedTuple):
    """What a job needs of a backend."""

    device: str | None  # None: not known
    dtype: str
    ring: bool
    masks: bool
    trusts_code: bool


def fault(name: Backend, needs: Needs) -> str:
    """Why a backend cannot do it; "" where it can."""
    able = BACKENDS[name]
    if needs.device == "cpu":
        # There native returns the log-sum-exp: see engines/cpu_support.py.
        return "" if name == "native" else "needs a GPU, and there is none"
    if needs.device is not None and able.device and needs.device != able.device:
        return f"does not run on {needs.device}"
    if name.endswith("_hub") and not needs.trusts_code:
        return "is code from the hub, which runs only with model: {trust_remote_code: true}"
    if needs.dtype == "float32" and not able.float32:
        return "takes no float32"
    if needs.masks and not able.masks:
        return "takes no attention mask, which texts of unequal length in a batch need"
    if needs.ring and not able.lse and needs.device is not None:
        return "does not return the log-sum-exp that ring attention needs"
    return ""


def check_package(name: Backend, conditions: Conditions) -> None:
    """Raises StrategyError where this machine will do the work and the backend's package is not
    installed; diffusers would say so only after the weights are loaded."""
    if conditions.device in (None, "cpu"):
        return
    from diffusers.models.attention_dispatch import (
        AttentionBackendName,
        _check_attention_backend_requirements,
    )

    try:
        _check_attention_backend_requirements(AttentionBackendName(name))
    except RuntimeError:
        package = BACKENDS[name].package
        raise StrategyError(
            f"strategy: attention_backend {name} needs {package}, and it is not installed: "
            f"{install_line(package)}"
        ) from None
