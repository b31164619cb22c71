"""What is written here by hand is what prometheus_client would have written."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mpbroker.exporter.exposition import Family, Page, labels_text
from mpbroker.metrics.snapshot import Distribution
from shm.counters import BUCKETS, bucket_of

GAUGE = Family("house_rooms", "gauge", "Rooms of a house.")
LABELS = st.dictionaries(st.sampled_from(("a", "b", "c_d")), st.text(max_size=8), min_size=1)


@example(labels={"a": ""}, value=2**53 + 1)
@given(labels=LABELS, value=st.integers(-(2**53), 2**63))
def test_lines_are_those_of_prometheus_client(labels: dict[str, str], value: int) -> None:
    ours, theirs = Page(), Page()
    ours.lines(GAUGE, [(labels_text(sorted(labels.items())), value)])
    theirs.add(GAUGE, value, labels)
    (read,), (wanted,) = (
        list(text_string_to_metric_families(page.text().decode())) for page in (ours, theirs)
    )
    assert (read.name, read.type, read.documentation) == (wanted.name, wanted.type, wanted.documentation)
    # Prometheus' values are doubles; the parser makes larger ones of digits alone.
    assert [(s.name, s.labels, float(s.value)) for s in read.samples] == [
        (s.name, s.labels, s.value) for s in wanted.samples
    ]


def test_a_family_without_samples_is_left_out() -> None:
    page = Page()
    page.lines(GAUGE, [])
    assert page.text() == b""


def test_families_of_one_name_are_joined() -> None:
    page = Page()
    page.add(GAUGE, 3, {"house": "x"})
    page.add(GAUGE, 4, {"house": "y"})
    assert page.text().decode().count("# TYPE house_rooms gauge") == 1


def test_a_counter_has_its_suffix_once() -> None:
    page = Page()
    page.add(Family("doors_total", "counter", "Doors."), 2)
    assert page.text().decode().splitlines()[1:] == ["# TYPE doors_total counter", "doors_total 2.0"]


def test_a_histogram_counts_what_is_below_each_bound() -> None:
    buckets = [0] * BUCKETS
    for value in (1, 3, 700, 5000, 1 << 40):
        buckets[bucket_of(value)] += 1
    page = Page()
    bounds = [(bucket_of(bound), bound / 1000) for bound in (4, 1024, 8192)]
    page.histogram(Family("t_seconds", "histogram", "T."), Distribution(buckets, 9000, 1 << 40), bounds, 1000)
    (family,) = text_string_to_metric_families(page.text().decode())
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert found == {"0.004": 2, "1.024": 3, "8.192": 4, "+Inf": 5, "t_seconds_count": 5, "t_seconds_sum": 9}
