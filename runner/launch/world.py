"""This process among those of its launch: ranks, and where the shared store is.

The only reader of the launcher's variables, whether it is torchrun, `accelerate launch` or none.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import LaunchError

__all__ = ["World", "report_to_launcher", "world_from"]

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
    has_agent: bool = False  # started by torchrun or accelerate, which live as long as we do
    one_gpu_a_task: bool = False  # the scheduler shows each process only its own GPU


def world_from(environ: Mapping[str, str] | None = None) -> World:
    """The world that the launcher's variables describe.

    Raises LaunchError if they contradict each other, or if each of several Slurm tasks would do the
    whole job.
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
        one_gpu_a_task=any(map(env.get, ("SLURM_GPUS_PER_TASK", "SLURM_GPUS_ON_TASK")))
        or "gpu" in env.get("SLURM_TRES_PER_TASK", ""),
    )
    if not 0 <= world.rank < world.world_size:
        raise LaunchError(f"RANK={world.rank} is not below WORLD_SIZE={world.world_size}")
    return world


def report_to_launcher(words: str) -> None:
    """Record why this process exits with a code other than 0. torchrun prints it below its own
    traceback."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        # The form that torch expects; it warns about any other.
        extra = {"py_callstack": words, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": words, "extraInfo": extra}}))


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text and text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    raise LaunchError(f"{name}={text}: not a whole number; {_TORCHRUN} sets it")
