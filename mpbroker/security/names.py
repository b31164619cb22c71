"""The subject of a certificate as Java writes it (X500Principal.getName(), RFC 2253).

Principal mapping rules of existing clusters expect Java's text. OpenSSL's text differs in short names and
escapes, so OpenSSL only dumps the types and values, and this module formats them.
"""

from __future__ import annotations

import re

from mpbroker.security import openssl

# Attribute types that Java names in this format; it writes any other one as `OID=#hex of the value`.
SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# Types of ASN.1 that Java writes as text, and their encodings.
ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be"}
_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_OUTER_SPACES = re.compile(r"\A +| +\Z")


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate as Java writes it. Raises ValueError."""
    dumped = openssl.dump_subject(certificate)
    sets = ["+".join(map(_attribute, one.split("+"))) for one in dumped.split(",")] if dumped else []
    return ",".join(reversed(sets))


def _attribute(dumped: str) -> str:
    """Return an attribute as Java writes it, from `OID=#VALUE` (DER in hexadecimal). Raises ValueError."""
    kind, _, value = dumped.partition("=#")
    der = bytes.fromhex(value)
    short, encoding = SHORT_NAMES.get(kind), ENCODINGS.get(der[0])
    if short is None or encoding is None:
        return f"{short or kind}=#{der.hex()}"
    # After the type comes one byte of length, or the number of the bytes that hold the length.
    content = der[2 if der[1] < 0x80 else 2 + der[1] - 0x80 :]
    try:
        return f"{short}={escape(content.decode(encoding))}"
    except UnicodeDecodeError as error:
        raise ValueError(f"the certificate's subject has a {short} that is not text") from error


def escape(value: str) -> str:
    """Escape a value as Java's AVA.toRFC2253String does, which is more than RFC 2253 requires."""
    value = _ESCAPED.sub(r"\\\g<0>", value).replace("\0", r"\00")
    return _OUTER_SPACES.sub(lambda spaces: r"\ " * len(spaces[0]), value)
