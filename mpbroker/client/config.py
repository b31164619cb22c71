"""Settings of a client by the names that Kafka gives them (CommonClientConfigs, SslConfigs, SaslConfigs).

`from_properties` takes a mapping, which comes from a properties file or from options of another program. The
mapping may also use librdkafka's names for user, password and certificate authority. A setting of Kafka's
clients that this client does not support is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.client.errors import ClientConfigError
from mpbroker.config import known
from mpbroker.config.keys import Secret, listed
from mpbroker.config.properties import Entry, PropertiesError, parse
from mpbroker.config.protocols import PROTOCOLS, TLS_VERSIONS, uses_sasl, uses_tls
from mpbroker.security.jaas import JaasError, parse_jaas

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DEFAULT_PORT = 9092
UNIX = "unix:/"
# Families of settings in which an unknown name is an error: to ignore one could leave a connection unguarded.
GUARDED = ("security.", "ssl.", "sasl.")
JAAS = "sasl.jaas.config"


class ClientConfig(msgspec.Struct, frozen=True):
    """A client's settings. Defaults are as in Kafka's clients, unless a comment gives a reason."""

    client_id: str = "mpbroker"
    security_protocol: str = "PLAINTEXT"
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    connections_max_idle_ms: int = 540_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000
    max_in_flight_requests_per_connection: int = 5
    metadata_max_age_ms: int = 300_000
    # The kernel sizes its buffers better than a fixed 128 and 64 KiB do.
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    # Bounds what a stranger can make this process allocate; Kafka's client has no limit.
    receive_max_bytes: int = 1 << 30
    # False: an advertised address that was never connected to is a final error (AdvertisedUnreachable).
    retries_advertised: bool = True
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = ""
    # Name and password are the id and the HMAC of a delegation token: tokenauth="true" of sasl.jaas.config.
    sasl_by_token: bool = False
    ssl_truststore_location: str = ""
    ssl_truststore_certificates: str = ""
    ssl_keystore_location: str = ""
    ssl_keystore_key: str = ""
    ssl_keystore_certificate_chain: str = ""
    ssl_keystore_password: str = ""
    ssl_truststore_password: str = ""
    ssl_key_password: str = ""
    ssl_endpoint_identification_algorithm: str = "https"
    ssl_enabled_protocols: tuple[str, ...] = TLS_VERSIONS
    ssl_cipher_suites: tuple[str, ...] = ()
    # The Unix socket of a relay that logs in by its own client, and the settings for that client (`relay`).
    relay: str = ""
    relay_settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"ClientConfig(client_id={self.client_id!r}, security_protocol={self.security_protocol!r})"

    @property
    def uses_tls(self) -> bool:
        return uses_tls(self.security_protocol)

    @property
    def uses_sasl(self) -> bool:
        return uses_sasl(self.security_protocol)


def parse_servers(text: str) -> list[tuple[str, int]]:
    """Parse `host:port,…` (IPv6 in brackets, default port 9092) or `unix:/path`. Raises ClientConfigError."""
    servers = [_server(address.strip()) for address in text.split(",") if address.strip()]
    if not servers:
        raise ClientConfigError(f"'{text}' is not HOST:PORT")
    return servers


def _server(address: str) -> tuple[str, int]:
    if address.startswith(UNIX):
        return address, 0
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ClientConfigError(f"'{address}' is not HOST:PORT or unix:/path")
    return host, int(port)


def from_properties(
    properties: Mapping[str, str], base: ClientConfig | None = None
) -> tuple[ClientConfig, list[str]]:
    """Return the settings, and the names that this client does not know. Raises ClientConfigError."""
    values: dict[str, Any] = {}
    unknown = []
    for name, text in properties.items():
        if name not in known_names() and not name.startswith(GUARDED):
            unknown.append(name)
            continue
        try:
            values.update(_parsed(name, text))
        except ClientConfigError as error:
            error.name = name
            raise
    config = msgspec.structs.replace(base or ClientConfig(), **values)
    _check(config)
    return config, unknown


def read_entries(path: Path | None) -> list[Entry]:
    """Return the properties in a file, an empty list if `path` is None. Raises ClientConfigError."""
    if path is None:
        return []
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        raise ClientConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def read_config(path: Path | None, base: ClientConfig, warn: Callable[[str], object]) -> ClientConfig:
    """Return `base` with a file's settings; `warn` gets a text per unknown name. Raises ClientConfigError."""
    entries = read_entries(path)
    lines = {entry.key: entry.line for entry in entries}
    try:
        config, unknown = from_properties({entry.key: entry.value for entry in entries}, base)
    except ClientConfigError as error:
        line = f":{lines[error.name]}" if error.name else ""
        raise ClientConfigError(f"{path}{line}: {error}") from error
    for name in unknown:
        warn(f"{path}:{lines[name]}: warning: {name} is ignored{known.hint([name], known_names())}")
    return config


def known_names() -> tuple[str, ...]:
    return (*_NAMES, *_NEEDLESS, JAAS)


def _parsed(name: str, text: str) -> dict[str, Any]:
    if name in _NAMES:
        attribute, parse = _NAMES[name]
        return {attribute: parse(name, text.strip())}
    if name == JAAS:
        return _of_jaas(text)
    if name in _NEEDLESS:
        return {}
    raise ClientConfigError(f"{name} is not supported by this client{known.hint([name], known_names())}")


def _text(_name: str, text: str) -> str:
    return text


def _list(_name: str, text: str) -> tuple[str, ...]:
    return tuple(listed(text))


def _number(lowest: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ClientConfigError(f"{name}={text} is not a number") from None
        if number < lowest:
            raise ClientConfigError(f"{name}={text}: the least is {lowest}")
        return number

    return parse


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.upper() not in allowed:
            raise ClientConfigError(f"{name}={text} is not one of {', '.join(allowed)}")
        return text.upper()

    return parse


def _file(name: str, text: str) -> str:
    if not Path(text).is_file():
        raise ClientConfigError(f"{name}: no such file: {text}")
    return text


def _identification(name: str, text: str) -> str:
    if text.lower() not in ("https", ""):
        raise ClientConfigError(f"{name}={text} is neither https nor empty")
    return text.lower()


_NAMES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "client.id": ("client_id", _text),
    "security.protocol": ("security_protocol", _one_of(*PROTOCOLS)),
    "request.timeout.ms": ("request_timeout_ms", _number(1)),
    "delivery.timeout.ms": ("delivery_timeout_ms", _number(1)),
    "connections.max.idle.ms": ("connections_max_idle_ms", _number(-1)),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _number(0)),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _number(0)),
    "retry.backoff.ms": ("retry_backoff_ms", _number(0)),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", _number(0)),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", _number(1)),
    "socket.connection.setup.timeout.max.ms": ("socket_connection_setup_timeout_max_ms", _number(1)),
    "max.in.flight.requests.per.connection": ("max_in_flight_requests_per_connection", _number(1)),
    "metadata.max.age.ms": ("metadata_max_age_ms", _number(0)),
    "send.buffer.bytes": ("send_buffer_bytes", _number(-1)),
    "receive.buffer.bytes": ("receive_buffer_bytes", _number(-1)),
    "sasl.mechanism": ("sasl_mechanism", _one_of(*MECHANISMS)),
    "sasl.mechanisms": ("sasl_mechanism", _one_of(*MECHANISMS)),
    "sasl.username": ("sasl_username", _text),
    "sasl.password": ("sasl_password", _text),
    "ssl.truststore.location": ("ssl_truststore_location", _file),
    "ssl.ca.location": ("ssl_truststore_location", _file),
    "ssl.truststore.certificates": ("ssl_truststore_certificates", _text),
    "ssl.keystore.location": ("ssl_keystore_location", _file),
    "ssl.keystore.key": ("ssl_keystore_key", _text),
    "ssl.keystore.certificate.chain": ("ssl_keystore_certificate_chain", _text),
    "ssl.keystore.password": ("ssl_keystore_password", _text),
    "ssl.truststore.password": ("ssl_truststore_password", _text),
    "ssl.key.password": ("ssl_key_password", _text),
    "ssl.endpoint.identification.algorithm": ("ssl_endpoint_identification_algorithm", _identification),
    "ssl.enabled.protocols": ("ssl_enabled_protocols", _list),
    "ssl.cipher.suites": ("ssl_cipher_suites", _list),
}

# Ignored: a store's content shows its type, and ssl.enabled.protocols has the versions of TLS.
_NEEDLESS = ("ssl.truststore.type", "ssl.keystore.type", "ssl.protocol")


def _check(config: ClientConfig) -> None:
    if config.uses_sasl:
        if not config.sasl_mechanism:
            raise ClientConfigError(
                f"security.protocol={config.security_protocol} needs sasl.mechanism, "
                f"one of {', '.join(MECHANISMS)}"
            )
        if not config.sasl_username or not config.sasl_password:
            raise ClientConfigError(
                f"sasl.mechanism={config.sasl_mechanism} needs username and password: give sasl.jaas.config, "
                "or sasl.username and sasl.password"
            )
    if unknown := [name for name in config.ssl_enabled_protocols if name not in TLS_VERSIONS]:
        raise ClientConfigError(
            f"ssl.enabled.protocols: {unknown[0]} is not one of {', '.join(TLS_VERSIONS)}"
        )
    if not config.ssl_enabled_protocols:
        raise ClientConfigError("ssl.enabled.protocols names no version of TLS")
    if bool(config.ssl_keystore_key) != bool(config.ssl_keystore_certificate_chain):
        raise ClientConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together")


_LOGIN_MODULES = ("PlainLoginModule", "ScramLoginModule")


def _of_jaas(text: str) -> dict[str, Any]:
    """Return the settings in a sasl.jaas.config. Its login module is PlainLoginModule or ScramLoginModule."""
    try:
        entry = parse_jaas(Secret(text))
    except JaasError as error:
        raise ClientConfigError(f"sasl.jaas.config: {error}") from error
    if entry.module.rpartition(".")[2] not in _LOGIN_MODULES:
        raise ClientConfigError(f"sasl.jaas.config: the login module is one of {', '.join(_LOGIN_MODULES)}")
    if not entry.options.get("username") or not entry.options.get("password"):
        raise ClientConfigError("sasl.jaas.config has no username or no password")
    return {
        "sasl_username": entry.options["username"],
        "sasl_password": entry.options["password"],
        "sasl_by_token": entry.options.get("tokenauth", "").lower() == "true",
    }
