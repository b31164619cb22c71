"""A broker with a configuration file that a test changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control

FIRST = """\
num.io.threads=2
num.network.threads=2
message.max.bytes=100000
"""


@dataclass
class Configured(Mpbroker):
    """A broker and its configuration file; what the file does not say are defaults."""

    text: str = FIRST
    extra: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.write(self.text)

    @property
    def file(self) -> Path:
        return self.directory / "server.properties"

    def command(self) -> list[str]:
        words = list(super().command())
        for flag in ("--processors", "--handlers"):
            at = words.index(flag)
            del words[at : at + 2]
        return [*words, "--config", str(self.file), *self.extra]

    def write(self, text: str) -> None:
        """Replace the file as a whole: a broker at an earlier signal reads the old or the new one."""
        beside = self.file.with_suffix(".new")
        beside.write_text(text.format(port=self.port))
        beside.replace(self.file)

    def reload(self, text: str) -> dict[str, Any]:
        self.write(text)
        return control(self).call("reload")


def pids(broker: Mpbroker) -> dict[str, int]:
    return {each["name"]: each["pid"] for each in control(broker).call("status")["processes"]}


def described(broker: Mpbroker) -> dict[str, str]:
    """The broker's settings, as one of its handlers says them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    resource = ConfigResource(ResourceType.BROKER, "1")
    (told,) = admin.describe_configs([resource], request_timeout=PATIENCE_S).values()
    return {name: entry.value for name, entry in told.result(PATIENCE_S).items()}
