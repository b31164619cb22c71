"""Scrubbing: bytes read, damage found. Kafka has nothing like it."""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import SCRUBBER
from mpbroker.metrics.broker import OURS
from mpbroker.metrics.families import Bean, View, family, value

SCRUBBER_BEANS = OURS + "Scrubber,name="


@family(
    SCRUBBER_BEANS + "<BytesPerSec|BatchesPerSec>",
    "meter",
    "What the scrubber has read of sealed segments, and the whole batches among it.",
)
def read(view: View) -> Iterator[Bean]:
    yield view.meter(SCRUBBER_BEANS + "BytesPerSec", Counter.COUNT_SCRUB_BYTES, (SCRUBBER,))
    yield view.meter(SCRUBBER_BEANS + "BatchesPerSec", Counter.COUNT_SCRUB_BATCHES, (SCRUBBER,))


@family(
    SCRUBBER_BEANS + "<DamagedRanges|PassesEnded|LastPassEndedMs|PassRemainingBytes>",
    "gauge",
    "Damaged ranges there are now, whose offsets are answered with CORRUPT_MESSAGE; log directories that "
    "were scrubbed to their end since the broker began, when the last one was (Unix time, 0: not yet), and "
    "the remaining bytes of the one that is being scrubbed.",
)
def found(view: View) -> Iterator[Bean]:
    def get(counter: Counter) -> float:
        return view.now.get(SCRUBBER, counter)

    left = get(Counter.COUNT_SCRUB_PASS_TOTAL) - get(Counter.COUNT_SCRUB_PASS_BYTES)
    yield value(SCRUBBER_BEANS + "DamagedRanges", get(Counter.COUNT_SCRUB_FINDINGS))
    yield value(SCRUBBER_BEANS + "PassesEnded", get(Counter.COUNT_SCRUB_PASSES))
    yield value(SCRUBBER_BEANS + "LastPassEndedMs", get(Counter.COUNT_SCRUB_PASS_ENDED_MS))
    yield value(SCRUBBER_BEANS + "PassRemainingBytes", max(left, 0))
