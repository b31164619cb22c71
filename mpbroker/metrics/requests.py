"""Metrics of requests by API: counts, errors, times and sizes (Kafka: RequestMetrics)."""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.meters import OTHER_ERROR, OTHER_VERSION, ApiHistogram, ApiPage
from mpbroker.metrics.families import Bean, View, family
from mpbroker.metrics.snapshot import NOTHING, ApiCounts, Snapshot
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.schema import message_for

PREFIX = "kafka.network:type=RequestMetrics,name="
NS_PER_MS = 1e6
TIMES = {
    "RequestQueueTimeMs": ApiHistogram.REQUEST_QUEUE_NS,
    "LocalTimeMs": ApiHistogram.LOCAL_NS,
    "RemoteTimeMs": ApiHistogram.REMOTE_NS,
    "ThrottleTimeMs": ApiHistogram.THROTTLE_NS,
    "ResponseQueueTimeMs": ApiHistogram.RESPONSE_QUEUE_NS,
    "ResponseSendTimeMs": ApiHistogram.RESPONSE_SEND_NS,
    "TotalTimeMs": ApiHistogram.TOTAL_NS,
}
NAMES_OF_PAGE: dict[int, tuple[str, ...]] = {
    ApiKey.FETCH: ("Fetch", "FetchConsumer"),
    ApiPage.FETCH_FOLLOWER: ("Fetch", "FetchFollower"),
    ApiPage.ADD_PARTITIONS_TO_TXN_VERIFICATION: ("AddPartitionsToTxnVerification",),
}
ERROR_NAMES = {int(code): code.name for code in ErrorCode} | {OTHER_ERROR: "OTHER"}
CONVERTING = ("Produce", "Fetch")


def api_name(key: int) -> str:
    """Return Kafka's name of an API, for instance Fetch; "api-<key>" if the API is not known."""
    message = message_for("request", key)
    return f"api-{key}" if message is None else message.name.removesuffix("Request")


def by_name(snapshot: Snapshot) -> dict[str, ApiCounts]:
    """Return the counts by API name. "Fetch" counts all fetches, of consumers and of followers."""
    found: dict[str, ApiCounts] = {}
    for page, counts in snapshot.apis.items():
        for name in NAMES_OF_PAGE.get(page) or (api_name(page),):
            found.setdefault(name, ApiCounts()).add(counts.versions, counts.histograms)
    return dict(sorted(found.items()))


@family(
    PREFIX + "RequestsPerSec,request=<API>,version=<version>",
    "meter",
    "One for each request that has ended, however it ended. There is no DeprecatedRequestsPerSec: no version "
    "that is served is deprecated.",
)
def requests(view: View) -> Iterator[Bean]:
    before = by_name(view.before) if view.before is not None else None
    for name, counts in by_name(view.now).items():
        for version, count in sorted(counts.versions.items()):
            shown = f">={version}" if version == OTHER_VERSION else str(version)
            earlier = before.get(name, ApiCounts()).versions.get(version, 0) if before is not None else None
            yield Bean(f"{PREFIX}RequestsPerSec,request={name},version={shown}", view.rates(count, earlier))


@family(
    PREFIX + "ErrorsPerSec,request=<API>,error=<error>",
    "meter",
    "Error codes in responses, NONE among them; for produce and fetch one for each partition.",
)
def errors(view: View) -> Iterator[Bean]:
    for key, codes in sorted(view.now.errors.items()):
        for code, count in sorted(codes.items()):
            earlier = view.before.errors.get(key, {}).get(code, 0) if view.before is not None else None
            tags = f"request={api_name(key)},error={ERROR_NAMES.get(code, str(code))}"
            yield Bean(f"{PREFIX}ErrorsPerSec,{tags}", view.rates(count, earlier))


@family(
    PREFIX + f"<{'|'.join(TIMES)}>,request=<API>",
    "histogram (ms)",
    "Frame whole, taken by a handler, done there, answered, taken by the processor, written: the stages "
    "between; all but ThrottleTimeMs add up to TotalTimeMs. Fractions of a millisecond (Kafka: whole ones).",
)
def times(view: View) -> Iterator[Bean]:
    for name, counts in by_name(view.now).items():
        total = counts.histograms[ApiHistogram.TOTAL_NS].count
        for metric, histogram in TIMES.items():
            shown = counts.histograms[histogram].with_zeros(total)
            yield Bean(f"{PREFIX}{metric},request={name}", shown.attributes(NS_PER_MS))


@family(PREFIX + "RequestBytes,request=<API>", "histogram (bytes)", "Of the request's body.")
def request_bytes(view: View) -> Iterator[Bean]:
    for name, counts in by_name(view.now).items():
        shown = counts.histograms[ApiHistogram.REQUEST_BYTES]
        yield Bean(f"{PREFIX}RequestBytes,request={name}", shown.attributes(1))


@family(
    PREFIX + "<MessageConversionsTimeMs|TemporaryMemoryBytes>,request=<Produce|Fetch>",
    "histogram (ms, bytes)",
    "Time to check and rebuild batches that are stored in another codec than they came in; bytes of records "
    "while they were decompressed. Fetch never converts.",
)
def conversions(view: View) -> Iterator[Bean]:
    found = by_name(view.now)
    for name in CONVERTING:
        histograms = found[name].histograms if name in found else [NOTHING] * ApiHistogram.API_HISTOGRAMS
        total = histograms[ApiHistogram.TOTAL_NS].count
        time_ns = histograms[ApiHistogram.CONVERSION_NS].with_zeros(total)
        used = histograms[ApiHistogram.TEMPORARY_BYTES].with_zeros(total)
        yield Bean(f"{PREFIX}MessageConversionsTimeMs,request={name}", time_ns.attributes(NS_PER_MS))
        yield Bean(f"{PREFIX}TemporaryMemoryBytes,request={name}", used.attributes(1))
