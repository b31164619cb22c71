"""What a process takes over of another configuration: all of it, in the object that all its parts hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.load import load
from mpbroker.ipc import settings

TEXT = """\
listeners=PLAINTEXT://127.0.0.1:9092,SASL://[::1]:9093,LOCAL://unix:/run/k.sock
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,LOCAL:PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=some.PlainLoginModule required user_ann="s3cret";
listener.name.sasl.max.connections=7
max.connections.per.ip.overrides=127.0.0.1:5,[::1]:6
log.roll.ms=60000
log.cleaner.min.cleanable.ratio=0.25
"""


def test_it_arrives_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(TEXT)
    config, mine = load(file).config, BrokerConfig()
    part_of_mine = mine
    block = memoryview(bytearray(1 << 16))
    settings.write(block, settings.encode(config))
    settings.adopt(block, mine)
    assert mine == config
    assert part_of_mine is mine
    secret = mine.security_of("SASL", "PLAIN").sasl_jaas_config
    assert secret is not None
    assert "s3cret" in secret.text
    # A shorter one leaves nothing of the longer one.
    settings.write(block, settings.encode(BrokerConfig()))
    settings.adopt(block, mine)
    assert mine == BrokerConfig()


def test_one_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = structs.replace(BrokerConfig(), log_dirs=("x" * 10_000,))
    assert len(settings.encode(config)) > 10_000
    monkeypatch.setattr(settings, "BYTES", 10_000)
    with pytest.raises(ValueError, match="at most 9992 fit"):
        settings.encode(config)
