"""Kafka's tool and Kafka itself on what is left after each kind of fault; `make adopt` tries any seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_clients import left_behind
from tests.support import flips
from tests.support.adoption import Adopting, complaints, dump_complaints
from tests.support.flipped_bits import flip
from tests.support.forms import long_only, pick

SEEDS = pick("seeds of faults", short=1, long=20)
STEPS = pick("steps of a workload whose power is cut", short=80, long=220)


def kinds_of(kafka: Adopting) -> set[str]:
    """The kinds of faults that have left records."""
    return {left.name.split(".")[1].split("-")[0] for left in kafka.lefts if left.records()}


@long_only("Kafka adopts what power cuts leave")
def test_kafka_adopts_what_power_cuts_leave(tmp_path: Path) -> None:
    kafka = Adopting(tmp_path / "kafka")
    with left_behind.workplace() as place:
        for seed in range(1, SEEDS + 1):
            place.cut(kafka, seed, cuts=3, steps=STEPS)
    assert complaints(kafka) == []
    assert kinds_of(kafka) == {"cut"}


@long_only("Kafka adopts what faults leave")
def test_kafka_adopts_what_faults_leave(tmp_path: Path) -> None:
    """Flipped bits and calls that fail; and what compaction and transactions leave."""
    kafka = Adopting(tmp_path / "kafka")
    with left_behind.workplace() as place:
        for seed in range(1, SEEDS + 1):
            place.damage(kafka, seed)
        for image in place.images:
            name = image.directory.name
            for number, records in enumerate(image.committed):
                path = image.directory / f"t-{number}"
                kafka.take(f"as.{name}", path, stopped=name == "stopped", committed=frozenset(records))
    assert complaints(kafka) == []
    assert kinds_of(kafka) == {"flip", "fault", "compacted", "as"}


def test_kafka_adopts_what_killed_brokers_leave(tmp_path: Path) -> None:
    kafka = Adopting(tmp_path / "kafka")
    left_behind.after_kills(kafka, tmp_path / "ours")
    assert complaints(kafka) == []
    assert kinds_of(kafka) == {"killed", "stopped"}


@pytest.mark.parametrize(("suffix", "at"), [(".log", 71), (".index", 7), (".timeindex", 2)])
def test_what_does_not_fit_is_told(tmp_path: Path, suffix: str, at: int) -> None:
    kafka = Adopting(tmp_path / "kafka")
    with flips.workplace() as (_, images):
        kafka.take("bad", images[0].directory / "t-0", stopped=False)
    (left,) = kafka.lefts
    flip(sorted(left.path.glob(f"*{suffix}"))[1], at)
    assert dump_complaints([left])
