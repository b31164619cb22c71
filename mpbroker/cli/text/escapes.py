"""Escapes for bytes hard to type: \\n \\r \\t \\0 \\\\ and \\xHH. Any other backslash stands for itself."""

import re

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.?))|([^\\]+)", re.DOTALL)
_LETTERS = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    """Replace the escapes, and encode all else in UTF-8."""
    return b"".join(map(_bytes, _ESCAPE.finditer(text)))


def _bytes(match: re.Match[str]) -> bytes:
    hexadecimal, letter, plain = match.groups()
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if letter is not None:
        return _LETTERS.get(letter, b"\\" + letter.encode())
    return str(plain).encode()
