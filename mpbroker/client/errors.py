"""What can go wrong between a client and a cluster; each text says what, where and what to do."""

from mpbroker.protocol.errors import error_code


class ClientError(Exception):
    """Anything that a client cannot do."""

    @property
    def retriable(self) -> bool:
        """Whether the same question may be answered a little later."""
        return False


class ConfigError(ClientError):
    """A setting is missing, malformed, or not supported; `name` is the setting's, if one alone is wrong."""

    name = ""


class ConnectionLost(ClientError):
    """The broker cannot be reached or is gone; asking again may help if the question is harmless."""

    @property
    def retriable(self) -> bool:
        return True


class RequestTimedOut(ConnectionLost):
    """No answer came in time; the connection was closed."""


class AuthenticationFailed(ClientError):
    """The two sides do not trust each other: a certificate, a password, or the protocol is wrong."""


class InvalidReceive(ClientError):
    """What came is no response of Kafka's protocol."""


class UnsupportedByBroker(ClientError):
    """The broker lacks the API, or every version of it that this client has."""


class ApiFailed(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, number: int, message: str | None = None) -> None:
        self.code = error_code(number)
        super().__init__(f"{what}: {message or self.code.message} ({self.code.name})")

    @property
    def retriable(self) -> bool:
        return self.code.retriable
