"""Reader for Java's properties syntax (`java.util.Properties.load`), the syntax of server.properties.

The module reads no files: it parses a text into entries with line numbers. Differences from Java: the text is
UTF-8, not Latin-1, and the error about a malformed `\\u` escape names the line.
"""

import re
from collections.abc import Iterator

import msgspec

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A key ends at the first unescaped '=', ':' or blank; blanks around one '=' or ':' belong to neither side.
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ENDS_WITH_ODD_BACKSLASHES = re.compile(r"(?<!\\)(\\\\)*\\$")


class PropertiesError(ValueError):
    """The text is not in properties syntax. `line` is the number of the wrong line, from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


class Entry(msgspec.Struct, frozen=True):
    """A `key=value` of a file, and the number (from 1) of the line on which the entry begins."""

    key: str
    value: str
    line: int


def parse(text: str) -> list[Entry]:
    """Return all entries in file order. A key may occur several times."""
    return [_entry(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each entry, with continued lines joined, without comments."""
    joined = ""
    first = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip(_BLANKS)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        if _ENDS_WITH_ODD_BACKSLASHES.search(line):
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if first:
        yield first, joined


def _entry(line: str, number: int) -> Entry:
    end = _key_end(line)
    separator = _SEPARATOR.match(line, end)
    value_start = separator.end() if separator else end
    return Entry(_unescape(line[:end], number), _unescape(line[value_start:], number), number)


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
            continue
        if line[position] in "=: \t\f":
            return position
        position += 1
    return len(line)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            out.append(char)
            continue
        # The file's last line ends with a backslash, and has no next line. The backslash means nothing.
        escaped = text[position : position + 1]
        position += 1
        if escaped != "u":
            out.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            raise PropertiesError(
                number, f"'\\u{digits}' is not an escape: four hexadecimal digits must follow \\u"
            )
        out.append(chr(int(digits, 16)))
        position += 4
    return "".join(out)
