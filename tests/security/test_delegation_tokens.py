"""Delegation tokens by Kafka's tool, franz-go and `mpbroker token`; Java's, Go's and our clients log in."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpbroker.security.scram import ScramType
from tests.security.test_foreign_logins import PERFORMANCE, PLAIN_MODULE, SCRAM_MODULE
from tests.support.client_adapters import CONSUMER
from tests.support.client_tools import ToolError, dump, eventually, franz_program, kafka_tool, run
from tests.support.own_cli import OwnCli
from tests.support.secure_broker import PLAIN_PASSWORD, SecureBroker

TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
SHA512 = ScramType.SCRAM_SHA_512
PASSWORDS = {"ann": PLAIN_PASSWORD, "bob": f"{PLAIN_PASSWORD}2"}


def command(broker: SecureBroker, *arguments: str, code: int = 0) -> str:
    """Run a command of ours; return what it printed."""
    said = OwnCli(broker.bootstrap)(*arguments, code=code)
    return said.out + said.err


@dataclass
class Users:
    """Writes the files by which commands log in at listener SASL."""

    broker: SecureBroker
    directory: Path

    def named(self, user: str) -> tuple[str, ...]:
        options = f'username="{user}" password="{PASSWORDS[user]}"'
        return self._flags(user, "PLAIN", f"{PLAIN_MODULE} required {options};")

    def by(self, token_id: str, mac: str) -> tuple[str, ...]:
        options = f'username="{token_id}" password="{mac}" tokenauth="true"'
        return self._flags("token", "SCRAM-SHA-512", f"{SCRAM_MODULE} required {options};")

    def _flags(self, name: str, mechanism: str, jaas: str) -> tuple[str, ...]:
        file = self.directory / f"{name}.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        )
        server = ("--bootstrap-server", self.broker.address_of("SASL"))
        return (*server, "--command-config", str(file))

    def token(self, action: str, *arguments: str, user: str = "ann", code: int = 0) -> str:
        """Run `mpbroker token`."""
        return command(self.broker, "token", action, *arguments, *self.named(user), code=code)

    def logs_in(self, token_id: str, mac: str) -> bool:
        with self.broker.connect("BOTH") as client:
            return client.scram(SHA512, token_id, mac, by_token=True).error_code == 0


@pytest.fixture(name="users")
def _users(broker: SecureBroker, tmp_path: Path) -> Users:
    return Users(broker, tmp_path)


def rows(printed: str) -> list[list[str]]:
    """Return the words of each row of the table that Kafka's tool prints: id, HMAC, owner, requester, …"""
    lines = printed.splitlines()
    (header,) = [number for number, line in enumerate(lines) if line.startswith("TOKENID")]
    return [line.split() for line in lines[header + 1 :] if line.strip()]


def test_kafkas_tool(users: Users) -> None:
    def tool(*arguments: str, user: str = "ann") -> str:
        return kafka_tool(TOKENS, *users.named(user), *arguments)

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    ((token_id, mac, owner, requester, renewers, *_),) = rows(made)
    assert (owner, requester, renewers) == ("User:ann", "User:ann", "[User:bob]")
    assert users.logs_in(token_id, mac)
    renewed = tool("--renew", "--renew-time-period", "3600000", "--hmac", mac, user="bob")
    assert "Completed renew operation" in renewed
    assert [token_id, mac] in [row[:2] for row in rows(tool("--describe", "--owner-principal", "User:ann"))]
    tool("--expire", "--expiry-time-period", "-1", "--hmac", mac)
    assert not users.logs_in(token_id, mac)
    with pytest.raises(ToolError, match="DelegationTokenNotFoundException"):
        tool("--renew", "--renew-time-period", "1000", "--hmac", mac)


def test_kafkas_tool_reads_the_records(users: Users) -> None:
    made = json.loads(users.token("create", "--renewer-principal", "User:bob", "--json"))
    users.token("expire", made["token_id"])
    log = users.broker.log_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    printed = dump("--cluster-metadata-decoder", "--files", str(log))
    found = [json.loads(one) for one in re.findall(r"payload: (.*DELEGATION_TOKEN_RECORD.*)", printed)]
    put, gone = [one for one in found if one["data"]["tokenId"] == made["token_id"]]
    assert (put["type"], gone["type"]) == ("DELEGATION_TOKEN_RECORD", "REMOVE_DELEGATION_TOKEN_RECORD")
    assert (put["data"]["owner"], put["data"]["requester"]) == ("User:ann", "User:ann")
    assert put["data"]["renewers"] == ["User:bob"]
    assert put["data"]["issueTimestamp"] < put["data"]["expirationTimestamp"] < put["data"]["maxTimestamp"]


def test_javas_clients(users: Users) -> None:
    made = json.loads(users.token("create", "--json"))
    login = users.by(made["token_id"], made["hmac"])
    load = ("--topic", "by-token", "--num-records", "200", "--record-size", "100", "--throughput", "-1")
    assert "200 records sent" in kafka_tool(PERFORMANCE, *login, *load)
    read = ("--topic", "by-token", "--partition", "0", "--offset", "earliest", "--max-messages", "200")
    assert len(kafka_tool(CONSUMER, *login, *read, "--timeout-ms", "20000").splitlines()) == 200
    with pytest.raises(ToolError, match="on delegation token authenticated channels"):
        kafka_tool(TOKENS, *login, "--create", "--max-life-time-period", "-1")


def test_franz_go(users: Users) -> None:
    address = users.broker.address_of("SASL")
    printed = run([franz_program(), "tokens", address, "ann", PLAIN_PASSWORD, "by-franz-"])
    assert printed == b"ann 1\n"
    listed = command(users.broker, "topic", "list")
    assert "by-franz-SCRAM-SHA-256" in listed
    assert "by-franz-SCRAM-SHA-512" in listed


def test_our_command_and_our_client(users: Users) -> None:
    renewed_by_bob = ("--renewer-principal", "User:bob")
    made = json.loads(users.token("create", *renewed_by_bob, "--max-life-time-period", "600000", "--json"))
    token_id, mac = made["token_id"], made["hmac"]
    assert made["owner"] == "User:ann"
    assert made["expires"] == made["renewable_until"]
    assert users.logs_in(token_id, mac)
    assert not users.logs_in(token_id, mac[:-4] + "AA==")

    listed = users.token("list", "--json", "--owner-principal", "User:ann", user="bob")
    (row,) = [row for row in json.loads(listed) if row["token_id"] == token_id]
    assert (row["owner"], row["requester"], row["renewers"]) == ("User:ann", "User:ann", "User:bob")
    assert token_id in users.token("list")
    assert mac not in listed + users.token("list")

    assert f"token {token_id} expires " in users.token(
        "renew", token_id, "--renew-time-period", "60000", user="bob"
    )
    login = users.by(token_id, mac)
    command(users.broker, "topic", "create", "by-our-client", *login)
    assert "by-our-client" in command(users.broker, "topic", "list", *login)
    assert "with one by a token" in command(users.broker, "token", "create", *login, code=1)

    assert users.token("expire", token_id) == f"token {token_id} is removed\n"
    assert not users.logs_in(token_id, mac)
    assert "does not exist, or you may not see it" in users.token("expire", token_id, code=1)


def test_expired_tokens_are_removed(users: Users) -> None:
    made = json.loads(users.token("create", "--max-life-time-period", "1", "--json"))
    said = f"delegation token {made['token_id']} has expired and is removed"
    eventually(lambda: said in users.broker.output(), "it is removed")
    assert not users.logs_in(made["token_id"], made["hmac"])
    assert "does not exist, or you may not see it" in users.token("renew", made["token_id"], code=1)


def test_who_has_no_name_gets_no_token(users: Users) -> None:
    assert "may not ask for tokens" in command(users.broker, "token", "list", code=1)
    assert "is not User:NAME" in users.token("create", "--owner-principal", "ann", code=2)
