"""A broker by its port; others that listen are told from it."""

from __future__ import annotations

import socket

import pytest

from mpbroker.cli.by_port import runtime_dir_of
from mpbroker.cli.control import ControlClient
from mpbroker.cli.errors import CliError
from mpbroker.testing import Broker


def test_the_broker_that_listens_there(mpbroker_broker: Broker) -> None:
    port = int(mpbroker_broker.bootstrap_servers.rpartition(":")[2])
    assert ControlClient(runtime_dir_of(port)).call("status")["pid"] == mpbroker_broker.pid


def test_a_port_of_somebody_else() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(CliError, match=f"port {port} is no mpbroker of this user's"):
            runtime_dir_of(port)
    with pytest.raises(CliError, match=f"nobody listens on port {port}"):
        runtime_dir_of(port)


def test_a_port_of_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as stranger:
        stranger.bind(("::1", 0))
        stranger.listen()
        with pytest.raises(CliError, match="is no mpbroker"):
            runtime_dir_of(stranger.getsockname()[1])
