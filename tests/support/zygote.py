"""A process that imports once and then forks ranks: launches in a second, without a launcher.

Each line on stdin is a launch, each line on stdout its outcome. As under torchrun, when a rank ends
with an error, the others are stopped (SIGTERM, after 30 s SIGKILL).
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

KILL_AFTER_S = 30.0


def main() -> None:
    import torch

    torch.set_num_threads(1)
    for name in ("runner.run", "runner.render.load", "runner.render.writer", "runner.cli"):
        importlib.import_module(name)
    from diffusers import FluxPipeline, QwenImagePipeline  # noqa: F401  (its lazy imports)

    for name in sys.argv[1:]:
        resolve(name)()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(launch(json.loads(line))) + "\n")
        answers.flush()


def launch(request: dict) -> dict:
    started = time.monotonic()
    folder = Path(request["folder"])
    agent, port = serve_store()
    ranks = [start(request, rank, port, folder) for rank in range(request["world_size"])]
    codes, was_forced = wait(dict(enumerate(ranks)), request["timeout_s"])
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    return {
        "codes": codes,
        "was_forced": was_forced,
        "output": [read(folder / f"rank{rank}.txt") for rank in range(len(ranks))],
        "seconds": time.monotonic() - started,
    }


def serve_store() -> tuple[int, int]:
    """A process with a store, as torchrun's agent has one for its workers; and the store's port."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        with os.fdopen(reading) as answer:
            return process, int(answer.read())
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writing, str(store.port).encode())
    os.close(writing)
    signal.pause()
    del store
    os._exit(0)


def start(request: dict, rank: int, port: int, folder: Path) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        output = os.open(folder / f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        size = request["world_size"]
        if size > 1:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                TORCHELASTIC_USE_AGENT_STORE="True",
            )  # fmt: skip
        for name, value in request["environment"].items():
            os.environ[name] = value.format(rank=rank)
        os.chdir(folder)
        code = call(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def call(request: dict) -> int:
    for name in request["patches"]:
        resolve(name)()
    return int(resolve(request["function"])(request["arguments"]) or 0)


def resolve(name: str):
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def wait(ranks: dict[int, int], timeout_s: float) -> tuple[list[int], bool]:
    """The exit codes in the order of ranks, and whether SIGKILL was needed."""
    codes: dict[int, int] = {}
    was_forced = False
    deadline, kill_at = time.monotonic() + timeout_s, float("inf")
    while len(codes) < len(ranks):
        for rank, process in ranks.items():
            if rank in codes:
                continue
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if any(codes.values()) and kill_at == float("inf"):
            kill_at = now + KILL_AFTER_S
            signal_all(ranks, codes, signal.SIGTERM)
        if now > min(deadline, kill_at):
            was_forced = True
            signal_all(ranks, codes, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[rank] for rank in sorted(codes)], was_forced


def signal_all(ranks: dict[int, int], codes: dict[int, int], number: int) -> None:
    for rank, process in ranks.items():
        if rank not in codes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
