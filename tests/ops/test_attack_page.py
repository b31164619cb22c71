"""The table of attacks in docs/SECURITY.md."""

from __future__ import annotations

from ops.docs import attacks
from ops.docs.attacks import PAGE


def test_the_table_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == attacks.page(text, attacks.measured()), "run: python -m ops.docs.attacks"
    assert "<!-- table attacks -->" in text


def test_a_table_is_made_anew_and_the_rest_stays() -> None:
    sizes = {
        "before_bytes": 40_000_000,
        "peak_bytes": 41_200_000,
        "after_bytes": 0,
        "shared_before_bytes": 1_500_000,
        "shared_peak_bytes": 12_000,
    }
    row = {"attack": "a", "sent_bytes": 1_800, "answer": "NONE", "process": "handler 0", **sizes}
    row |= {"quiet_ms": 3.2, "longest_ms": 1_670.4, "longest_of": "Produce"}
    made = attacks.page(
        "before\n<!-- table attacks -->\nold\n<!-- end -->\nbehind\n",
        {"circumstances": "two cores", "attacks": [row]},
    )
    assert made == (
        "before\n<!-- table attacks -->\nMeasured on two cores.\n\n"
        "| attack | sent | answered | memory | shared memory | longest wait |\n|---|---:|---|---|---|---:|\n"
        "| a | 1.8 KB | NONE | handler 0: 40 MB → 41 MB → 0 B | 1.5 MB → 12.0 KB "
        "| 1,670 ms, Produce (3 ms) |\n<!-- end -->\nbehind\n"
    )
