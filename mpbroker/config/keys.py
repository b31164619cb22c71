"""`Key`, which describes a setting and parses its texts, and the errors for wrong texts.

The rules are from `org.apache.kafka.common.config.ConfigDef`: values are trimmed, numbers are plain Java
numbers (no underscores), lists are split at commas. An error reads
`Invalid value V for configuration K: why`, because that text reaches Kafka's clients through INVALID_CONFIG.
"""

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from mpbroker.config.integers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN


class Secret(msgspec.Struct, frozen=True, gc=False):
    """A password or cryptographic key. Its repr and str are `[hidden]`; the field `text` has the secret."""

    text: str

    def __repr__(self) -> str:
        return "[hidden]"

    __str__ = __repr__


Value = bool | int | float | str | tuple[str, ...] | Secret | None

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


class ConfigType(IntEnum):
    """Type of a setting, as numbered in ConfigType of DescribeConfigsResponse (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Problem(msgspec.Struct, frozen=True):
    """An error or a warning about a key. `origin` is where the key was set: file and line, or flag."""

    key: str
    origin: str
    message: str

    def __str__(self) -> str:
        place = f"{self.origin}: " if self.origin else ""
        # The message of a flag names the key already.
        repeated = f"{self.key}: " if self.origin.startswith("--") else ""
        return f"{place}{self.message.removeprefix(repeated)}"


class ConfigError(Exception):
    """The configuration cannot be used. `problems` has every reason, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class Key(msgspec.Struct, frozen=True):
    """The description of one setting. In `Annotated[...]`, name and default are taken from the field.

    `begins` is the title of a group of settings; only the first setting of the group has it. `pending` is the
    reason why a setting has no effect yet, for a warning. `check` returns the problem with a value, or "".
    `shown` makes a wrong text safe for logs.
    """

    type: ConfigType
    doc: str
    name: str = ""
    default: Value = None
    at_least: int | float | None = None
    at_most: int | float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    check: Callable[[Any], str] | None = None
    pending: str = ""
    shown: Callable[[str], str] = str
    begins: str = ""

    def invalid(self, text: str, why: str) -> ValueError:
        return ValueError(f"Invalid value {self.shown(text)} for configuration {self.name}: {why}")

    def parse(self, text: str) -> Value:
        """Return the typed value of a text. Raises ValueError with Kafka's words if the text is invalid."""
        text = text.strip()
        value = self._convert(text)
        self._check_bounds(text, value)
        return value

    def _convert(self, text: str) -> Value:
        match self.type:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self.invalid(text, "Expected value to be either true or false")
                return text.lower() == "true"
            case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
                low, high = (LONG_MIN, LONG_MAX) if self.type is ConfigType.LONG else (INT_MIN, INT_MAX)
                # 20 characters hold every 64-bit number; int() of a huge text is quadratic.
                if not _INTEGER.fullmatch(text) or len(text) > 20 or not low <= int(text) <= high:
                    raise self.invalid(text, f"Not a number of type {self.type.name}")
                return int(text)
            case ConfigType.DOUBLE:
                if not _DECIMAL.fullmatch(text):
                    raise self.invalid(text, "Not a number of type DOUBLE")
                return float(text)
            case ConfigType.LIST:
                return tuple(part.strip() for part in text.split(",")) if text else ()
            case ConfigType.PASSWORD:
                return Secret(text)
            case _:
                return text

    def _check_bounds(self, text: str, value: Value) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.at_least is not None and value < self.at_least:
                raise self.invalid(text, f"Value must be at least {self.at_least}")
            if self.at_most is not None and value > self.at_most:
                raise self.invalid(text, f"Value must be no more than {self.at_most}")
        if self.choices and isinstance(value, str) and value not in self.choices:
            raise self.invalid(text, f"String must be one of: {', '.join(self.choices)}")
        if isinstance(value, tuple):
            if "" in value:
                raise self.invalid(text, "Configuration values must not be empty.")
            if len(set(value)) != len(value):
                raise self.invalid(text, "Configuration values must not be duplicated.")
            if self.choices and not set(value) <= set(self.choices):
                raise self.invalid(text, f"Values must be among: {', '.join(self.choices)}")
        if self.check is not None and (why := self.check(value)):
            raise self.invalid(text, why)


def listed(text: str) -> list[str]:
    """Return the parts of a comma-separated list, stripped, without empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


def key_name(field: str) -> str:
    """Return Kafka's key for a field name: every underscore becomes a dot."""
    return field.replace("_", ".")


def field_name(key: str) -> str:
    return key.replace(".", "_")


def table_of(struct: type[msgspec.Struct]) -> dict[str, Key]:
    """Return the Keys in the annotations of a struct's fields, by Kafka's name, in order of definition."""
    hints = get_type_hints(struct, include_extras=True)
    table = {}
    for info in msgspec.structs.fields(struct):
        hint = hints[info.name]
        if get_origin(hint) is not Annotated:
            continue
        key = next(extra for extra in get_args(hint)[1:] if isinstance(extra, Key))
        name = key_name(info.name)
        table[name] = msgspec.structs.replace(key, name=name, default=key.default or _default(info))
    return table


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def format_value(value: Any) -> str | None:
    """Return a value's text as Kafka's tools print it; None (null on the wire) for None and for secrets."""
    if value is None or isinstance(value, Secret):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, dict):
        return ",".join(f"{name}:{part}" for name, part in value.items())
    return str(value)
