"""Two hosts on one machine: each has its own network, processes and host name; one shared disk."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from support.jobs import ENVIRONMENT, kill, workers

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29871


class Host:
    """One of the two. `launch` runs a command there, as the first process of its namespace."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.process: subprocess.Popen[str] | None = None

    def launch(self, command: Sequence[str]) -> subprocess.Popen[str]:
        inside = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        named = ["sh", "-c", f'hostname {self.name} && "$@"', "sh", *command]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *inside, *named],
            env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "veth"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self.process

    def end(self, number: int = signal.SIGKILL) -> None:
        """End all its processes at once; with TERM, ask its launcher."""
        if self.process is None or self.process.poll() is not None:
            return
        children = workers(self.process.pid)
        if number == signal.SIGTERM:
            for agent in (c for c in children if "torch.distributed.run" in c.cmdline()):
                kill(agent, number)
        else:
            for process in [*children, psutil.Process(self.process.pid)]:
                kill(process)
        self.process.communicate()


class Hosts:
    """A context manager. `cut` pulls the cable: no connection is closed, packets just vanish."""

    def __init__(self) -> None:
        self.names = [f"runner{os.getpid()}{side}" for side in "ab"]
        self.hosts = [Host(n, f"host-{side}") for n, side in zip(self.names, "ab", strict=True)]

    def __enter__(self) -> "Hosts":
        one, two = self.names
        lines = ["127.0.0.1 localhost"]
        lines += [f"{a} {h.name}" for a, h in zip(ADDRESSES, self.hosts, strict=True)]
        for name in self.names:
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            _ip("netns", "add", name)
        _ip("link", "add", "veth", "netns", one, "type", "veth", "peer", "veth", "netns", two)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "veth")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "veth", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.end()
        for name in self.names:
            _ip("netns", "delete", name)
            (Path("/etc/netns") / name / "hosts").unlink()
            (Path("/etc/netns") / name).rmdir()

    def cut(self) -> None:
        _ip("-n", self.names[1], "link", "set", "veth", "down")

    def mend(self) -> None:
        _ip("-n", self.names[1], "link", "set", "veth", "up")


def missing() -> str:
    """What this machine lacks for two hosts; "" if nothing."""
    lacks = [name for name in ("ip", "unshare") if not shutil.which(name)]
    lacks = [*(["root"] if os.geteuid() else []), *lacks]
    # A container may not be allowed to make them; here they vanish with the command.
    probe = "unshare --net --uts --pid --fork --mount-proc ip link add veth type veth"
    if not lacks and subprocess.run(probe.split(), capture_output=True).returncode:
        lacks = ["network namespaces"]
    return ", ".join(lacks)


def static(node: int) -> list[str]:
    words = ["--nnodes=2", f"--node-rank={node}", f"--master-addr={ADDRESSES[0]}"]
    return _torchrun(*words, f"--master-port={PORT}")


def elastic(_: int) -> list[str]:
    words = ["--nnodes=1:2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=job"]
    return _torchrun(*words, f"--rdzv-endpoint=host-a:{PORT}")


def _torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *arguments]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
