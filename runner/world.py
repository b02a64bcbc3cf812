"""The launcher's world: ranks, the device, the shared store. The only reader of launcher variables.

torchrun, `accelerate launch` and plain `python` all end here; nothing else in the project looks at
the environment for a rank.
"""

import contextlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.errors import LaunchError
from runner.units import counted

if TYPE_CHECKING:
    import torch

__all__ = [
    "Machine",
    "World",
    "c_compiler",
    "compile_cache",
    "own_devices",
    "set_device",
    "tell_launcher",
    "this_machine",
    "world_from",
]

_TORCHRUN = "torchrun --standalone --nproc-per-node N -m runner MANIFEST"


@dataclass(frozen=True, slots=True)
class World:
    """This process among all processes of one launch."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    master_addr: str = ""
    master_port: int = 0
    run_id: str = "none"
    restart: int = 0
    max_restarts: int = 0
    agent_store: bool = False  # the launcher's agent serves the store on the master port
    has_agent: bool = False  # started by torchrun or accelerate, which end with all of us
    one_gpu_a_task: bool = False  # the scheduler shows each process just its own GPU


def world_from(environ: Mapping[str, str] | None = None) -> World:
    """The world that the launcher's variables describe.

    Raises LaunchError where they contradict each other, or where several tasks of a scheduler would
    each do the whole job.
    """
    env = os.environ if environ is None else environ
    if "RANK" not in env and "WORLD_SIZE" not in env:
        tasks = _number(env, "SLURM_NTASKS", 1)
        if "SLURM_PROCID" in env and tasks > 1:
            raise LaunchError(
                f"SLURM_NTASKS={tasks}: {tasks} Slurm tasks without torchrun would each do the "
                f"whole job; use: srun --ntasks-per-node=1 torchrun --nproc-per-node N … -m runner "
                f"MANIFEST"
            )
        return World()
    missing = [
        name
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if name not in env
    ]
    if missing:
        raise LaunchError(f"{', '.join(missing)}: not set; launch with: {_TORCHRUN}")
    world = World(
        rank=_number(env, "RANK"),
        local_rank=_number(env, "LOCAL_RANK"),
        world_size=_number(env, "WORLD_SIZE"),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE", _number(env, "WORLD_SIZE")),
        node=_number(env, "GROUP_RANK", 0),
        master_addr=env["MASTER_ADDR"],
        master_port=_number(env, "MASTER_PORT"),
        run_id=env.get("TORCHELASTIC_RUN_ID", "none"),
        restart=_number(env, "TORCHELASTIC_RESTART_COUNT", 0),
        max_restarts=_number(env, "TORCHELASTIC_MAX_RESTARTS", 0),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
        has_agent="TORCHELASTIC_RESTART_COUNT" in env,
        one_gpu_a_task="SLURM_GPUS_PER_TASK" in env or "SLURM_GPUS_ON_TASK" in env,
    )
    if not 0 <= world.rank < world.world_size:
        raise LaunchError(f"RANK={world.rank} is not below WORLD_SIZE={world.world_size}")
    return world


def tell_launcher(words: str) -> None:
    """Why this process ends with another code than 0: torchrun shows it below its own traceback."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        # In torch's own form; any other brings a warning.
        extra = {"py_callstack": words, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": words, "extraInfo": extra}}))


def compile_cache() -> Path:
    """Where torch keeps compiled code: the folder that the user named, else one in the user's
    cache, told to torch. torch's own choice is below /tmp, which on a cluster ends with the job.

    Raises LaunchError where the user has no home.
    """
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if named:
        return Path(named).absolute()
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise LaunchError(
            "compile: no home folder to keep compiled code in; set TORCHINDUCTOR_CACHE_DIR"
        ) from None
    folder = caches.absolute() / "runner" / "compiled" / _processor()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder


def _processor() -> str:
    """A name for what this processor can do: code for it may be no code for another that shares
    the home folder, and torch does not look."""
    able = ""
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text()
        able = next((line for line in info.splitlines() if re.match("flags|Features", line)), "")
    return f"{platform.machine()}-{zlib.crc32(able.encode()):08x}"


def c_compiler() -> str | None:
    """As triton looks for one."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


@dataclass(frozen=True, slots=True)
class Machine:
    """The accelerators that a launch may use, all alike."""

    devices: int
    memory: int  # bytes of each
    interconnect: Literal["nvlink", "pcie"]
    device: str = "cuda"  # their type; of a machine that is only planned

    def __str__(self) -> str:
        words = {"nvlink": "NVLink", "pcie": "PCIe"}[self.interconnect]
        return f"{self.devices} × {self.memory / 2**30:.0f} GiB on {words}"


def this_machine(world: World) -> Machine | None:
    """What this node has, times the nodes; None without accelerators."""
    import torch

    if not torch.accelerator.is_available():
        return None
    count = torch.accelerator.device_count()
    memory = min(torch.accelerator.get_memory_info(index)[1] for index in range(count))
    nodes = max(1, world.world_size // world.local_world_size)
    return Machine(count * nodes, memory, _interconnect())


def _interconnect() -> Literal["nvlink", "pcie"]:
    """NVLink where the driver's matrix of links names one between any two devices."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "pcie"
    return "nvlink" if re.search(r"\bNV\d+\b", found.stdout) else "pcie"


def own_devices(world: World, processes: int = 1) -> range:
    """The rank's share of the node's accelerators, together with those of the processes after it
    where it drives them for `processes`."""
    import torch

    each = max(1, torch.accelerator.device_count() // world.local_world_size)
    first = world.local_rank * each
    return range(first, first + each * processes)


def set_device(world: World, *, share: bool = False) -> "torch.device":
    """The rank's own device, made current before anything else touches an accelerator; with
    `share` the first of its share of the node's.

    Raises LaunchError where the node has fewer accelerators than local ranks.
    """
    import torch

    if not torch.accelerator.is_available():
        return torch.device("cpu")
    visible = torch.accelerator.device_count()
    index = world.local_rank
    if visible == 1 and world.local_world_size > 1 and world.one_gpu_a_task:
        index = 0
    elif world.local_world_size > visible:
        raise LaunchError(
            f"{world.local_world_size} processes on {socket.gethostname()}, which shows "
            f"{counted(visible, 'device')}; use --nproc-per-node {visible}"
        )
    elif share:
        index = own_devices(world)[0]
    torch.accelerator.set_device_index(index)
    accelerator = torch.accelerator.current_accelerator()
    return torch.device(accelerator.type if accelerator else "cpu", index)


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text and text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    raise LaunchError(f"{name}={text}: not a whole number; {_TORCHRUN} sets it")
