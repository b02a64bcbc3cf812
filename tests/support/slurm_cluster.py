"""A real Slurm on this machine: its own munge, controller and nodes, all on 127.0.0.1, as root."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from support.jobs import ENVIRONMENT, wait_for
from support.launch import free_ports

CONFIG = """\
ClusterName=test
FirstJobId={first_job}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock,cred_expire=10
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmctldParameters=enable_configless
PropagateResourceLimits=NONE
ReturnToService=2
KillWait=5
SlurmdTimeout=10
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_setup_env_fail
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/ctld.pid
SlurmdPidFile={dir}/d-%n.pid
SlurmctldLogFile={dir}/ctld.log
SlurmdLogFile={dir}/d-%n.log
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
{extra}
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 OverTimeLimit=0
PartitionName=high Nodes=ALL PriorityTier=10
"""


class Slurm:
    """Use as a context manager. Nodes are n1, n2, …; each has a GPU: /dev/null."""

    def __init__(self, folder: Path, nodes: int = 2, *, requeue_exit: bool = False) -> None:
        self.folder = folder
        self.names = [f"n{i}" for i in range(1, nodes + 1)]
        self.extra = "RequeueExit=75" if requeue_exit else ""
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**ENVIRONMENT, "SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["PATH"] = f"{folder}/bin:{self.environment['PATH']}"

    def __enter__(self) -> "Slurm":
        (self.folder / "state").mkdir(parents=True)
        (self.folder / "bin").mkdir()
        (self.folder / "slurm.conf").write_text(self._config())
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={name} Name=gpu File=/dev/null\n" for name in self.names)
        )
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
        for kind in ("socket=munge.sock", "pid-file=munge.pid", "seed-file=munge.seed"):
            option, _, name = kind.partition("=")
            munge.append(f"--{option}={self.folder / name}")
        self._start("munged", munge)
        wait_for((self.folder / "munge.sock").exists)
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        for name in self.names:
            self.start_node(name)
        idle = f"idle {len(self.names)}"
        try:
            wait_for(lambda: self.call("sinfo", "-h", "-p", "low", "-o", "%t %D") == idle)
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.call("squeue", "-h", "-o", "%A").split():
            self.call("scancel", "--signal=KILL", "--full", job)
            self.call("scancel", job)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def start_node(self, name: str) -> None:
        conf = str(self.folder / "slurm.conf")
        self._start(name, ["slurmd", "-D", "-N", name, "-f", conf])

    def submit(self, script: str, *arguments: str) -> str:
        """The job's number."""
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments],
            input=script,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def call(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED …"""
        words = self.call("scontrol", "show", "job", "-o", job).split()
        return next((w.partition("=")[2] for w in words if w.startswith("JobState=")), "")

    def value(self, job: str, name: str) -> str:
        words = self.call("scontrol", "show", "job", "-o", job).split()
        return next((w.partition("=")[2] for w in words if w.startswith(f"{name}=")), "")

    def wait(self, job: str, states: Sequence[str], timeout_s: float) -> str:
        end = time.monotonic() + timeout_s
        while (state := self.state(job)) not in states:
            assert time.monotonic() < end, f"{job} is {state}: {self.output(job)}"
            time.sleep(0.5)
        return state

    def output(self, job: str) -> str:
        return "".join(p.read_text() for p in sorted(self.folder.glob(f"slurm-{job}*.out")))

    def _start(self, name: str, command: list[str]) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        self.daemons[name] = subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )

    def _config(self) -> str:
        host = socket.gethostname()
        ports = free_ports(1 + len(self.names))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 "
            f"RealMemory=4000 Gres=gpu:1"
            for name, port in zip(self.names, ports[1:], strict=True)
        )
        return CONFIG.format(
            # The scripts take their port from the job: two clusters at once must not agree on it.
            first_job=1 + secrets.randbelow(15_000),
            host=host,
            port=ports[0],
            dir=self.folder,
            extra=self.extra,
            nodes=nodes,
        )


def missing() -> str:
    """What this machine lacks for a Slurm cluster; "" if nothing."""
    lacks = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]
    return ", ".join([*(["root"] if os.geteuid() else []), *lacks])
