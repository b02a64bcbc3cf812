"""Counters and messages that all processes of a launch share, without a process group.

They are in the launcher's TCP store. There is no collective, so no GPU timeout can trip and no
living host waits for a dead one. A process that loses the store finishes its own shard.
"""

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from runner.launch.world import World

__all__ = ["LocalStore", "Store", "StoreLostError", "connect", "raw_store"]

CONNECT_TIMEOUT_S = 60.0
LOOPBACK = "127.0.0.1"
AGENT_TIMEOUT_S = 10.0  # short: the agent serves the store before it starts us
ANSWER_TIMEOUT_S = 10.0  # an operation normally takes less than a millisecond
T = TypeVar("T")
_Call = tuple[Callable[[Any], Any], "queue.SimpleQueue[Any]"]


class StoreLostError(Exception):
    """The process that serves the store is gone or out of reach."""


class Store(Protocol):
    """Keys are shared by the processes of one launch. A restart by the launcher begins with no
    keys; only those of `command` stay. Any method may raise StoreLostError."""

    @property
    def command(self) -> "Store": ...

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, which begins at 0, and return its new value. Atomic."""

    def counts(self, keys: Sequence[str]) -> list[int]:
        """Several counters at once; `add` must have created each of them."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> str | None:
        """The value, or None if it is not set. Does not wait."""


class LocalStore:
    """The store of a launch of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._values: dict[str, str] = {}

    @property
    def command(self) -> "LocalStore":
        return self

    def add(self, key: str, amount: int = 1) -> int:
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount
            return self._counts[key]

    def counts(self, keys: Sequence[str]) -> list[int]:
        return [self._counts[key] for key in keys]

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str) -> str | None:
        return self._values.get(key)


class _TcpStore:
    """Keys under a prefix in the launcher's store."""

    def __init__(self, client: "_Client", prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    @property
    def command(self) -> "_TcpStore":
        return _TcpStore(self._client, "command/")

    def add(self, key: str, amount: int = 1) -> int:
        return self._client.call(lambda store: int(store.add(self._prefix + key, amount)))

    def counts(self, keys: Sequence[str]) -> list[int]:
        names = [self._prefix + key for key in keys]
        return self._client.call(lambda store: [int(count) for count in store.multi_get(names)])

    def set(self, key: str, value: str) -> None:
        self._client.call(lambda store: store.set(self._prefix + key, value))

    def get(self, key: str) -> str | None:
        return self._client.call(lambda store: _get(store, self._prefix + key))


def _get(store: Any, key: str) -> str | None:
    # `get` of a missing key would wait and block the connection.
    return store.get(key).decode() if store.check([key]) else None


class _Client:
    """The connection. Once lost, it stays lost.

    When the other machine vanishes, torch's client waits until the kernel gives the connection up,
    which takes a quarter of an hour. So a thread makes the calls, and we wait for the thread.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lost = False
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="store", daemon=True).start()

    def call(self, operation: Callable[[Any], T]) -> T:
        if self._lost:
            raise StoreLostError
        answers: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()
        self._calls.put((operation, answers))
        try:
            answer = answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            self._lost = True
            raise StoreLostError(f"no answer for {ANSWER_TIMEOUT_S:.0f} s") from None
        if isinstance(answer, RuntimeError):  # also torch's DistStoreError, DistNetworkError
            self._lost = True
            raise StoreLostError from answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _serve(self) -> None:
        while True:
            operation, answers = self._calls.get()
            try:
                answers.put(operation(self._store))
            except Exception as error:
                answers.put(error)


def connect(world: World) -> Store:
    """The store of this launch. Under torchrun the agent serves it; without an agent rank 0 does.

    Runs and restarts have separate keys. Raises StoreLostError if the store cannot be reached.
    """
    if world.world_size == 1 and not world.max_restarts:
        return LocalStore()
    try:
        if world.agent_store:
            _check_agent(world)
        store = raw_store(world, serves=world.rank == 0 and not world.agent_store)
    except (RuntimeError, OSError) as error:
        raise StoreLostError from error
    return _TcpStore(_Client(store), f"{world.restart}/")


def _is_loopback(host: str) -> bool:
    """Whether all processes run on this host, if they reach the store by this name. A host's own
    name does not say so: it may stand for the loopback on that host alone."""
    return host == "localhost" or host.startswith("127.")


def _check_agent(world: World) -> None:
    """Raises OSError if no agent listens: it died after it started us. torch's client would try for
    two minutes."""
    address = (world.master_addr, world.master_port)
    socket.create_connection(address, timeout=AGENT_TIMEOUT_S).close()


def raw_store(world: World, part: str = "", *, serves: bool = False) -> Any:
    """torch's client of the launcher's store. Its keys are separate for each run and `part`; with
    `serves` this process hosts the store.

    Raises RuntimeError or OSError if the store cannot be reached.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    # torch itself would listen on all interfaces, without a password.
    is_local = _is_loopback(world.master_addr)
    host = LOOPBACK if is_local else world.master_addr
    listener = socket.create_server((host, world.master_port)) if serves and is_local else None
    store = TCPStore(
        host,
        world.master_port,
        is_master=serves,
        timeout=timedelta(seconds=CONNECT_TIMEOUT_S),
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    run = f"runner/{world.run_id}"
    return PrefixStore(f"{run}/{part}" if part else run, store)
