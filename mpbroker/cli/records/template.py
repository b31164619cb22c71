"""The format of `mpbroker consume -f`: kcat's letters, compiled once and filled in per record.

%t topic, %p partition, %o offset, %k key, %v or %s value, %T timestamp (ms), %K and %S lengths of key and
value (-1 for null), %h headers as name=value, %% a percent sign. The text between them may have escapes.
"""

import re
from collections.abc import Callable

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.text.escapes import unescape
from mpbroker.records.record import Record

Part = Callable[[str, int, Record], bytes]

# A character after a backslash is no format letter.
_TOKEN = re.compile(r"%(.?)|((?:\\.?|[^%\\])+)", re.DOTALL)


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


_LETTERS: dict[str, Part] = {
    "t": lambda topic, _partition, _record: topic.encode(),
    "p": lambda _topic, partition, _record: b"%d" % partition,
    "o": lambda _topic, _partition, record: b"%d" % record.offset,
    "k": lambda _topic, _partition, record: record.key or b"",
    "v": lambda _topic, _partition, record: record.value or b"",
    "s": lambda _topic, _partition, record: record.value or b"",
    "T": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "K": lambda _topic, _partition, record: _length(record.key),
    "S": lambda _topic, _partition, record: _length(record.value),
    "h": lambda _topic, _partition, record: _headers(record),
    "%": lambda _topic, _partition, _record: b"%",
}


def compile_template(template: str) -> Part:
    """Return a function from topic, partition and record to the bytes to print. Raises CliError."""
    parts: list[Part] = []
    for match in _TOKEN.finditer(template):
        letter, literal = match.groups()
        if letter is not None:
            if letter not in _LETTERS:
                raise CliError(f"-f knows no %{letter}; it has %{', %'.join(_LETTERS)}", USAGE_ERROR)
            parts.append(_LETTERS[letter])
        else:
            parts.append(_literal(unescape(literal)))
    return lambda topic, partition, record: b"".join([part(topic, partition, record) for part in parts])


def _literal(text: bytes) -> Part:
    return lambda _topic, _partition, _record: text
