"""Checks of ports, and of the addresses that are advertised to clients."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

from mpbroker.cli.host.local_broker import is_of_this_host
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener, is_loopback
from mpbroker.ipc.process import FatalError
from mpbroker.startup.sockets import bind, remove_path
from spark_integration.check import NOTE, OK, PROBLEM, Check, failed

ANSWERS_WITHIN_S: Final = 2.0


def checks(config: BrokerConfig, running: tuple[str, ...] | None) -> Iterator[Check]:
    """Check each listener and each advertised address.

    `running`: the listeners of the broker that runs on the log directories; None: no broker runs.
    """
    for listener in config.listeners:
        yield port(listener, config, running)
    for listener in config.advertised_listeners or config.listeners:
        if not listener.path:
            yield from advertised(listener, config, is_running=running is not None)


def port(listener: Listener, config: BrokerConfig, running: tuple[str, ...] | None) -> Check:
    """Check that a broker can bind the listener's address, or that the running broker has bound it."""
    name = f"listener {listener.name}"
    if running is not None and str(listener) in running:
        return Check(name, OK, f"{listener} is served by the broker that runs")
    try:
        fd, _ = bind(listener, config.listeners, config)
    except FatalError as error:
        return failed(name, error)
    os.close(fd)
    remove_path(listener)
    return Check(name, OK, f"{listener} is free")


def advertised(listener: Listener, config: BrokerConfig, *, is_running: bool) -> Iterator[Check]:
    """Check that the advertised address can be resolved, and that a running broker answers there."""
    name = f"advertised {listener.name}"
    host = socket.getfqdn() if listener.is_wildcard else listener.host
    try:
        found = socket.getaddrinfo(host, listener.port, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = "set advertised.listeners to a name that clients can resolve"
        yield Check(name, PROBLEM, f"{host} cannot be resolved ({error.strerror})", advice)
        return
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    shown = f"{host}:{listener.port} ({', '.join(addresses)})"
    if _is_only_for_this_host(listener, addresses, config):
        advice = f"set advertised.listeners={listener.name}://NAME:{listener.port} with a name of this host"
        yield Check(name, NOTE, f"{shown}: clients on other hosts are told the loopback address", advice)
    elif is_running and listener.port and not any(_answers(one) for one in found):
        advice = "see that name, firewall and NAT lead to the broker from where its clients are"
        yield Check(name, PROBLEM, f"{shown} does not answer", advice)
    elif not is_running and not any(is_of_this_host(one) for one in found):
        advice = "look again while the broker runs: then it is tried"
        yield Check(name, NOTE, f"{shown} is no address of this host", advice)
    else:
        yield Check(name, OK, f"{shown}{' answers' if is_running and listener.port else ''}")


def _is_only_for_this_host(listener: Listener, addresses: list[str], config: BrokerConfig) -> bool:
    """Return whether the listener is open to other hosts, but all advertised addresses are loopback."""
    bound = next((one for one in config.listeners if one.name == listener.name), listener)
    return all(map(is_loopback, addresses)) and not is_loopback(bound.host) and not bound.path


def _answers(found: tuple[int, int, int, str, tuple[object, ...]]) -> bool:
    family, kind, protocol, _, address = found
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(ANSWERS_WITHIN_S)
        return connection.connect_ex(address) == 0
