"""The altered settings of this broker, as the coordinator tells them.

The coordinator tells all of them whenever one changes, and its successor tells them again: a repetition
changes nothing. The newest count, and are kept for the next reading of the configuration file, which lies
beneath them. (Kafka: DynamicConfigPublisher, DynamicBrokerConfig.)
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

log = logging.getLogger("mpbroker.supervisor")

_decoder = msgspec.msgpack.Decoder(BrokerSettings)


class AlteredSettings:
    """The settings altered last. `waits`: the running broker does not follow some of them yet."""

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
        """Take what the coordinator has told since the last time. Return whether the settings differ."""
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
        """Tell the coordinator that this version is done as far as can be, so that clients wait no longer."""
        if self._told != self._version:
            self._told = self._version
            self._done.store(0, self._version)
            # Ring whether it sleeps or not: on its way from a look at the word to sleep it would miss a bell.
            os.eventfd_write(self._coordinator_bell, 1)

    def _usable(self, texts: dict[str, str]) -> dict[str, str]:
        good, problems = dynamic.usable(texts)
        for problem in problems:
            log.error("%s. It has no effect; delete it with kafka-configs --delete-config", problem)
        return good
