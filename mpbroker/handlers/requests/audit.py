"""Log lines about refusals: in each handler so many for a principal and minute, then how many more.

(Kafka: `kafka.authorizer.logger`, which has a line for each refusal of each name, without a bound.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from mpbroker.handlers.requests.permissions import Need
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.security.acls import Acl
from mpbroker.security.authorizer import Client, Verdict

log = logging.getLogger("mpbroker.kafka.authorizer.logger")

EVERY_MS: Final = 60_000
LINES_EACH: Final = 20
# Principals that are told apart; tokens may name very many. All others count as one.
PRINCIPALS_MAX: Final = 1_000
NAME_SHOWN_MAX: Final = 255
OTHERS: Final = "other principals"


@dataclass
class _Told:
    since_ms: int
    lines: int = 0
    more: int = 0


class Audit:
    """The refusals of one handler."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def refused(
        self, now_ms: int, client: Client, need: Need, name: str, api_key: int, verdict: Verdict
    ) -> None:
        """Log a refusal: who, from where, what, for which API, and by which entry."""
        who = client.principal
        if who not in self._told and len(self._told) >= PRINCIPALS_MAX:
            who = OTHERS
        told = self._told.setdefault(who, _Told(now_ms))
        if told.lines == LINES_EACH:
            told.more += 1
            return
        told.lines += 1
        log.info(
            "%s from %s is denied %s %r for %s: %s",
            client.principal,
            client.host,
            need,
            name[:NAME_SHOWN_MAX],
            ApiKey(api_key).name,
            verdict.rule if isinstance(verdict.rule, Acl) else verdict.rule.value,
        )

    def follow(self, now_ms: int) -> None:
        """Sum up each minute that is over. Call it now and then."""
        over = [who for who, told in self._told.items() if now_ms >= told.since_ms + EVERY_MS]
        for who in over:
            told = self._told.pop(who)
            if told.more:
                log.info("%s: %d more refusals in the last %d s", who, told.more, EVERY_MS // 1000)
