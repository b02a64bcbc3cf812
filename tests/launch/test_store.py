"""Where the store listens that a rank hosts itself."""

import socket

import psutil
import pytest
from support.launch import free_ports

from runner.launch.store import raw_store
from runner.launch.world import World


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_a_store_for_one_host_cannot_be_reached_from_another(address: str) -> None:
    (port,) = free_ports(1)
    world = World(world_size=2, local_world_size=2, master_addr=address, master_port=port)
    served = raw_store(world, serves=True)
    client = raw_store(world)
    client.set("key", "value")
    assert served.get("key") == b"value"
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections()
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert listening == ["127.0.0.1"]


def test_a_store_for_several_hosts_listens_on_all_of_them() -> None:
    (port,) = free_ports(1)
    address = socket.gethostname()
    world = World(world_size=2, local_world_size=1, master_addr=address, master_port=port)
    served = raw_store(world, serves=True)
    served.set("key", "value")
    assert raw_store(world).get("key") == b"value"
