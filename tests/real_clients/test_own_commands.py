"""mpbroker's own produce and consume are clients like others: what a broker finds too large they cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench.brokers import Broker
from tests.polling import PATIENCE_S
from tests.real_clients.conftest import create_topic

ROOT = Path(__file__).parents[2]
MAX_MESSAGE_BYTES = 20_000
LINES = b"".join(b"%06d %s\n" % (number, b"x" * (number % 300)) for number in range(6000))


def command(broker: Broker, *arguments: str, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mpbroker", *arguments, "-b", broker.bootstrap],
        input=lines,
        capture_output=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("acks", ["all", "1"])
def test_large_batches_into_a_topic_for_small_ones(broker: Broker, acks: str, codec: str) -> None:
    topic = f"small-{acks}-{codec}"
    create_topic(broker.bootstrap, topic, 1, {"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    written = command(broker, "produce", topic, "--acks", acks, "-z", codec, lines=LINES)
    assert (written.stderr, written.returncode) == (b"", 0)
    read = command(broker, "consume", topic, "--from-beginning", "-e")
    assert (read.returncode, read.stdout == LINES) == (0, True)


def test_a_line_that_is_too_large_is_named(broker: Broker) -> None:
    create_topic(broker.bootstrap, "small", 1, {"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    lines = b"first\n" + b"y" * 2 * MAX_MESSAGE_BYTES + b"\nlast\n"
    refused = command(broker, "produce", "small", lines=lines)
    assert refused.returncode == 1
    assert b"partition small-0: the record that begins with 'yyy" in refused.stderr
    assert refused.stderr.endswith(b"(MESSAGE_TOO_LARGE); 1 record is written\n")
    read = command(broker, "consume", "small", "--from-beginning", "-e")
    assert read.stdout == b"first\n"
