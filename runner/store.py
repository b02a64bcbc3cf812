"""Counters and messages that all processes of a launch share, without a process group.

The launcher's TCP store does it: no collective, so no GPU time-out can trip and no living host
waits for a dead one. A process that loses the store goes on with its own share.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from runner.world import World

__all__ = ["LocalStore", "Store", "StoreLostError", "connect", "raw_store"]

CONNECT_TIMEOUT_S = 60.0
T = TypeVar("T")


class StoreLostError(Exception):
    """The process that serves the store is gone or out of reach."""


class Store(Protocol):
    """Keys are shared by the processes of one launch alone. Any method may raise StoreLostError."""

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, which begins at 0, and return its new value: one atomic operation."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> str | None:
        """The value, or None while nobody has set it. Never waits."""


class LocalStore:
    """The store of a launch of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._values: dict[str, str] = {}

    def add(self, key: str, amount: int = 1) -> int:
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount
            return self._counts[key]

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str) -> str | None:
        return self._values.get(key)


class _TcpStore:
    """A client of the launcher's store; once lost, it stays lost."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lost = False

    def add(self, key: str, amount: int = 1) -> int:
        return self._call(lambda: int(self._store.add(key, amount)))

    def set(self, key: str, value: str) -> None:
        self._call(lambda: self._store.set(key, value))

    def get(self, key: str) -> str | None:
        return self._call(lambda: self._get(key))

    def _get(self, key: str) -> str | None:
        # `get` of a key that is not there would wait, and hold the connection meanwhile.
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _call(self, operation: Callable[[], T]) -> T:
        if self._lost:
            raise StoreLostError
        try:
            return operation()
        except RuntimeError as error:  # torch's DistStoreError and DistNetworkError are such
            self._lost = True
            raise StoreLostError from error


def connect(world: World) -> Store:
    """The store of this launch. Under torchrun the agent serves it; without an agent rank 0 does.

    Keys of another run, or of the same one before a restart, are apart.
    """
    if world.world_size == 1:
        return LocalStore()
    try:
        return _TcpStore(raw_store(world, "", serves=world.rank == 0 and not world.agent_store))
    except RuntimeError as error:
        raise StoreLostError from error


def raw_store(world: World, part: str, *, serves: bool = False) -> Any:
    """torch's own client of this launch's store, for keys of one part; `serves`: host it here.

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
    run = f"runner/{world.run_id}/{world.restart}"
    return PrefixStore(f"{run}/{part}" if part else run, store)
