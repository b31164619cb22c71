"""How fast addresses may connect, as an acceptor hears it from the coordinator."""

from __future__ import annotations

import msgspec

from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.limits import LimitNews
from mpbroker.ipc.process import ProcessContext
from mpbroker.network.acceptor.connection_quotas import ConnectionQuotas

_decoder: msgspec.msgpack.Decoder[LimitNews] = msgspec.msgpack.Decoder(LimitNews)


class AddressRates:
    """An acceptor is a reader from before its fork, so it can look before it accepts anybody."""

    def __init__(self, context: ProcessContext, quotas: ConnectionQuotas) -> None:
        memory = context.memory
        self._reader = BulletinReader(
            memory.private.block("limits"), memory.words("limit_acks"), context.index
        )
        self._quotas = quotas

    def follow(self) -> None:
        """Reads what is new; to be called often, for a publisher may wait until all have."""
        for message in self._reader.poll():
            news = _decoder.decode(message)
            rates = {image.address: image.per_second for image in news.limits}
            self._quotas.change_ip_rates(rates, replace=news.everything)
