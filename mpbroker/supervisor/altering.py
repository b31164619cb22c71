"""What clients have altered of this broker's settings, as the coordinator tells it.

It tells all of it whenever something changes, and its successor tells it again: what is told twice changes
nothing. The newest counts, and is kept for when the configuration file, which lies beneath it, is read again.
(Kafka: DynamicConfigPublisher, DynamicBrokerConfig.)
"""

from __future__ import annotations

import logging
import os

import msgspec

from mpbroker.config import dynamic
from mpbroker.config.altered import Altered
from mpbroker.ipc.broker_settings import BrokerSettings
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.topology import COORDINATOR, SUPERVISOR, SharedMemory

log = logging.getLogger("mpbroker")

_decoder = msgspec.msgpack.Decoder(BrokerSettings)


class AlteredSettings:
    """`waits`: there is something that the running broker does not follow yet."""

    def __init__(self, memory: SharedMemory, node_id: int) -> None:
        self.waits = False
        self.now = Altered()
        self._node = str(node_id)
        self._reader = BulletinReader(
            memory.private.block("brokers"), memory.words("broker_acks"), SUPERVISOR
        )
        self._done = memory.words("brokers_done")
        self._version = 0
        self._told = 0
        self._coordinator_bell = memory.bell_fds[COORDINATOR]

    def look(self) -> bool:
        """Takes what the coordinator has told since the last time; whether it is something else."""
        if not (news := self._reader.poll()):
            return False
        told = _decoder.decode(news[-1])
        self._version = told.version
        mine, others = (self._usable(told.brokers.get(name, {})) for name in (self._node, ""))
        after = Altered(mine, others)
        differs = after != self.now
        self.now = after
        self.waits = self.waits or differs
        return differs

    def acknowledge(self) -> None:
        """Done as far as can be: whoever has altered something waits no longer."""
        if self._told != self._version:
            self._told = self._version
            self._done.store(0, self._version)
            # Whether it sleeps or not: one on its way from a look at the word to sleep would not be rung.
            os.eventfd_write(self._coordinator_bell, 1)

    def _usable(self, texts: dict[str, str]) -> dict[str, str]:
        good, problems = dynamic.usable(texts)
        for problem in problems:
            log.error("%s. It has no effect; delete it with kafka-configs --delete-config", problem)
        return good
