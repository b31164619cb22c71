"""The rates at which addresses may connect, which an acceptor reads from the coordinator."""

from __future__ import annotations

import msgspec

from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.limits import LimitNews
from mpbroker.ipc.process import ProcessContext
from mpbroker.network.acceptor.connection_quotas import ConnectionQuotas

_decoder: msgspec.msgpack.Decoder[LimitNews] = msgspec.msgpack.Decoder(LimitNews)


class AddressRates:
    """The rates for one acceptor, a reader since before its fork: it can read before its first accept."""

    def __init__(self, context: ProcessContext, quotas: ConnectionQuotas) -> None:
        memory = context.memory
        block = memory.private.block("limits")
        # It changes when there is news.
        self.word = block[:8]
        self._reader = BulletinReader(block, memory.words("limit_acks"), context.index)
        self._quotas = quotas

    def follow(self) -> None:
        """Read new messages. Call it often: a publisher may wait until all processes have."""
        for message in self._reader.poll():
            news = _decoder.decode(message)
            rates = {image.address: image.per_second for image in news.limits}
            self._quotas.change_ip_rates(rates, replace=news.everything)
