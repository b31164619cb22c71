"""The fuzz of frames, TLS and SASL. `make fuzz` sends what it is told."""

from pathlib import Path

from tests.security import fuzz
from tests.support.forms import pick
from tests.support.real_brokers import served
from tests.support.secure_broker import SecureBroker

LAYERS = 9
ROUNDS = pick("damaged inputs", short=110 * LAYERS, long=11_000 * LAYERS)


def test_damaged_bytes_leave_nothing_behind(tmp_path: Path) -> None:
    with served(SecureBroker(tmp_path / "broker", failed_delay_ms=5, longest_delay_ms=6)) as broker:
        outcomes = fuzz.run(broker, ROUNDS)
    assert sum(outcomes.values()) == ROUNDS
    # Damage is neither always noticed nor never.
    for layer in ("frame", "tls record", "sasl", "sasl over tls"):
        assert outcomes[f"{layer}: served"] + outcomes[f"{layer}: closed"] == ROUNDS // LAYERS
