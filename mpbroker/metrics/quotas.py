"""Metrics of client quotas: usage and pauses.

(Kafka: ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager.)
"""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.meters import QuotaKind, QuotaWord
from mpbroker.ipc.topology import PROCESSORS
from mpbroker.metrics.families import Bean, View, family

TYPE = "kafka.server:type="
NAMES = {
    QuotaKind.QUOTA_PRODUCE: "Produce",
    QuotaKind.QUOTA_FETCH: "Fetch",
    QuotaKind.QUOTA_REQUEST: "Request",
    QuotaKind.QUOTA_MUTATION: "ControllerMutation",
}
# Percent of one process per nanosecond a second.
PERCENT = 1e-7
THROTTLED = {
    "Produce": Counter.COUNT_THROTTLED_PRODUCE,
    "Fetch": Counter.COUNT_THROTTLED_FETCH,
    "Request": Counter.COUNT_THROTTLED_REQUEST,
    "ControllerMutation": Counter.COUNT_THROTTLED_MUTATION,
}


@family(TYPE + f"<{'|'.join(THROTTLED)}>", "gauge", "Channels that a quota keeps muted now.", ("queue-size",))
def throttled(view: View) -> Iterator[Bean]:
    for kind, counter in THROTTLED.items():
        muted = view.total(counter, view.now.serving(PROCESSORS))
        yield Bean(TYPE + kind, {"queue-size": muted})


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _per_second(view: View, words: list[int], before: list[int] | None, word: QuotaWord) -> float:
    """Return a word's growth per second since `before`, or since the broker's start if `before` is None."""
    rates = view.rates(words[word], before[word] if before is not None else None)
    return rates.get("IntervalRate", rates["MeanRate"])


def _usage(view: View, kind: int, words: list[int], before: list[int] | None) -> dict[str, float]:
    used, rate = words[QuotaWord.QUOTA_USED], _per_second(view, words, before, QuotaWord.QUOTA_USED)
    pauses = QuotaWord.QUOTA_PAUSES_MS, QuotaWord.QUOTA_PAUSES
    earlier = (before[pauses[0]], before[pauses[1]]) if before is not None else None
    found: dict[str, float] = {
        "throttle-time": view.average(words[pauses[0]], words[pauses[1]], earlier),
        "throttle-total": words[pauses[1]],
    }
    if kind == QuotaKind.QUOTA_REQUEST:
        return found | {"request-time": rate * PERCENT, "request-time-ns-total": used}
    if kind == QuotaKind.QUOTA_MUTATION:
        return found | {"mutation-rate": rate, "mutation-total": used}
    return found | {"byte-rate": rate, "byte-total": used}


USED = {
    QuotaKind.QUOTA_PRODUCE: ("byte-total", "byte-rate"),
    QuotaKind.QUOTA_FETCH: ("byte-total", "byte-rate"),
    QuotaKind.QUOTA_REQUEST: ("request-time", "request-time-ns-total"),
    QuotaKind.QUOTA_MUTATION: ("mutation-total", "mutation-rate"),
}
PAUSED = ("throttle-time", "throttle-total")
TAGS = ("user", "client-id")
MEANING = {
    QuotaKind.QUOTA_PRODUCE: "Bytes of produce requests.",
    QuotaKind.QUOTA_FETCH: "Bytes of records in fetch responses; bytes held back are not counted.",
    QuotaKind.QUOTA_REQUEST: "Time of handlers and processors: request-time in percent of one process; "
    "exempt are requests without acks, which no quota on time limits.",
    QuotaKind.QUOTA_MUTATION: "Partitions created and deleted.",
}


def _register(kind: QuotaKind, name: str) -> None:
    """Register two families for one kind of quota: for all clients together, and for each budget."""
    exempt = (
        ("exempt-request-time", "exempt-request-time-ns-total") if kind == QuotaKind.QUOTA_REQUEST else ()
    )
    tokens = ("tokens",) if kind == QuotaKind.QUOTA_MUTATION else ()

    @family(
        TYPE + name,
        "total, rate, mean (ms)",
        MEANING[kind] + " Of all clients that have such a quota.",
        (*USED[kind], *exempt, *PAUSED),
    )
    def of_all(view: View) -> Iterator[Bean]:
        words = view.now.quotas[kind]
        before = view.before.quotas[kind] if view.before is not None else None
        found = _usage(view, kind, words, before)
        if exempt:
            rate = _per_second(view, words, before, QuotaWord.QUOTA_EXEMPT)
            found |= {exempt[0]: rate * PERCENT, exempt[1]: words[QuotaWord.QUOTA_EXEMPT]}
        yield Bean(TYPE + name, found)

    @family(
        TYPE + name + "[,user=<user>][,client-id=<client id>]",
        "total, rate, mean (ms)",
        "Of one budget: its clients are named by their common user or client id.",
        (*USED[kind], *tokens, *PAUSED),
    )
    def of_client(view: View) -> Iterator[Bean]:
        for owner, found in of_clients(view, kind):
            tags = [f",{tag}={text}" for tag, text in zip(TAGS, owner, strict=True) if text]
            yield Bean(TYPE + name + "".join(tags), found)


def of_clients(view: View, kind: QuotaKind) -> Iterator[tuple[tuple[str, str], dict[str, float]]]:
    """Yield the (user, client id) and the attributes of each budget; "" for no user or no client id."""
    for owner, words in sorted(view.now.quota_clients.items()):
        if owner[0] != kind:
            continue
        before = None
        if view.before is not None:
            before = view.before.quota_clients.get(owner, [0] * QuotaWord.QUOTA_WORDS)
        found = _usage(view, kind, words, before)
        if kind == QuotaKind.QUOTA_MUTATION:
            found["tokens"] = _tokens(view, words)
        yield owner[1:], found


def _tokens(view: View, words: list[int]) -> float:
    """Return how many tokens a bucket has now, including tokens added since `words` were written."""
    passed_s = max(view.now.now_ns / 1e6 - words[QuotaWord.QUOTA_LAST_MS], 0) / 1000
    left = _signed(words[QuotaWord.QUOTA_TOKENS_MILLI]) + words[QuotaWord.QUOTA_RATE_MILLI] * passed_s
    return min(left, words[QuotaWord.QUOTA_BURST_MILLI]) / 1000


for _kind, _name in NAMES.items():
    _register(_kind, _name)
