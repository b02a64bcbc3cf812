"""Counters and messages that all processes of a launch share, without a process group.

The launcher's TCP store does it: no collective, so no GPU time-out can trip and no living host
waits for a dead one. A process that loses the store goes on with its own share.
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
AGENT_TIMEOUT_S = 10.0  # the agent serves the store before it starts us
ANSWER_TIMEOUT_S = 10.0  # an operation takes less than a millisecond
T = TypeVar("T")
_Call = tuple[Callable[[Any], Any], "queue.SimpleQueue[Any]"]


class StoreLostError(Exception):
    """The process that serves the store is gone or out of reach."""


class Store(Protocol):
    """Keys are shared by the processes of one launch alone, between two restarts of a launcher;
    those of `command` outlast them. Any method may raise StoreLostError."""

    @property
    def command(self) -> "Store": ...

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, which begins at 0, and return its new value: one atomic operation."""

    def counts(self, keys: Sequence[str]) -> list[int]:
        """Several counters at once, each begun by an `add` before."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> str | None:
        """The value, or None while nobody has set it. Never waits."""


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
    # `get` of a key that is not there would wait, and hold the connection meanwhile.
    return store.get(key).decode() if store.check([key]) else None


class _Client:
    """The connection; once lost, it stays lost.

    Where the other machine vanishes without a word, torch's client waits until the kernel gives the
    connection up, a quarter of an hour. So a thread calls it, and we wait for that thread.
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
        if isinstance(answer, RuntimeError):  # torch's DistStoreError and DistNetworkError are such
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

    Keys of another run, or of the same one before a restart, are apart.
    """
    if world.world_size == 1 and not world.max_restarts:
        return LocalStore()
    try:
        if world.agent_store:
            _knock(world)
        store = raw_store(world, serves=world.rank == 0 and not world.agent_store)
    except (RuntimeError, OSError) as error:
        raise StoreLostError from error
    return _TcpStore(_Client(store), f"{world.restart}/")


def _knock(world: World) -> None:
    """Raises OSError where no agent listens: it died since it started us, and torch's client would
    try for two minutes."""
    address = (world.master_addr, world.master_port)
    socket.create_connection(address, timeout=AGENT_TIMEOUT_S).close()


def raw_store(world: World, part: str = "", *, serves: bool = False) -> Any:
    """torch's own client of the launcher's store, for keys of this run and of one part of it;
    `serves`: host it here.

    Raises RuntimeError where it cannot be reached.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    store = TCPStore(
        world.master_addr,
        world.master_port,
        is_master=serves,
        timeout=timedelta(seconds=CONNECT_TIMEOUT_S),
        wait_for_workers=False,
    )
    run = f"runner/{world.run_id}"
    return PrefixStore(f"{run}/{part}" if part else run, store)
