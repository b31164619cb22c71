"""Fault injection: a test sets the faults of its broker, and is answered when every process has them.

Faults come over the control socket only, and only to a broker that `mpbroker.testing` has started. Clients of
listeners cannot set faults, and `mpbroker serve` refuses them.
"""

from __future__ import annotations

import logging

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import faults, settings
from mpbroker.ipc.faults import Fault
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import error_code
from mpbroker.supervisor.changing import publish
from mpbroker.supervisor.control import Later
from mpbroker.supervisor.roles import served
from mpbroker.supervisor.tree import Tree

log = logging.getLogger("mpbroker.supervisor")

# Answered by processors, during the login.
BEFORE_LOGIN = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Faulting:
    """Replaces the faults of the broker. `ask` takes a request to do so, and `advance` carries it out."""

    def __init__(self) -> None:
        self.is_allowed = False
        self._asked: list[tuple[list[Fault], Later]] = []

    def ask(self, wanted: list[Fault] | None, config: BrokerConfig) -> Later:
        """Request that the broker has the faults `wanted` and no others.

        The returned answer is given when all processes have them. Raises FatalError, ValueError.
        """
        if not self.is_allowed:
            raise FatalError("faults are for brokers that mpbroker.testing has started; this one serves")
        wanted = wanted or []
        for fault in wanted:
            _check(fault, config)
        faults.encode(wanted)
        answer = Later()
        self._asked.append((wanted, answer))
        return answer

    def advance(self, tree: Tree, config: BrokerConfig) -> None:
        asked, self._asked = self._asked, []
        for wanted, answer in asked:
            settings.write(tree.memory.private.block("faults"), faults.encode(wanted))
            publish(settings.encode(config), tree)
            log.info("faults on demand: %s", "; ".join(map(_described, wanted)) or "none")
            answer.give({"faults": len(wanted)})


def _check(fault: Fault, config: BrokerConfig) -> None:
    if fault.api_key in BEFORE_LOGIN:
        name = ApiKey(fault.api_key).name
        raise ValueError(f"{name} is answered before the login, where no fault can be: take another API")
    if fault.api_key not in {one.api_key for one in served(config)}:
        raise ValueError(f"this broker serves no API with key {fault.api_key}")
    if fault.error_code and fault.closes:
        raise ValueError("a request can fail or lose its connection, not both: ask for one of them")
    if not (fault.error_code or fault.closes or fault.delay_ms):
        raise ValueError("a fault needs a delay, an error code or a closed connection")
    if fault.delay_ms < 0 or fault.times < 0:
        raise ValueError(f"delay_ms={fault.delay_ms}, times={fault.times}: neither may be negative")
    if error_code(fault.error_code) != fault.error_code:
        raise ValueError(f"Kafka has no error code {fault.error_code}")


def _described(fault: Fault) -> str:
    parts = [ApiKey(fault.api_key).name]
    parts += [f"of client {fault.client_id!r}"] if fault.client_id is not None else []
    parts += [f"waits {fault.delay_ms} ms"] if fault.delay_ms else []
    parts += [f"fails with {error_code(fault.error_code).name}"] if fault.error_code else []
    parts += ["loses its connection"] if fault.closes else []
    parts += [f"{fault.times} times"] if fault.times else []
    return " ".join(parts)
