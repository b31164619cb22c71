"""The subject of a certificate as Java writes it (X500Principal.getName(), RFC 2253).

Principal mapping rules of existing clusters are written against that text, so it is made from the DER bytes
and not from what the ssl module shows: attribute types without a short name are `OID=#hex of the value`.
"""

from __future__ import annotations

from typing import NamedTuple

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
# ASN.1 string types whose bytes are text, and how to read it.
TEXT_TAGS = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
SEQUENCE, SET, OID, VERSION = 0x30, 0x31, 0x06, 0xA0
ESCAPED = set(',+"\\<>;=')


class MalformedCertificate(ValueError):
    """The bytes are no X.509 certificate."""


class Element(NamedTuple):
    """A tag and where its content lies; `start` is where the tag stands."""

    tag: int
    start: int
    begin: int
    end: int


def read_element(der: bytes, at: int, end: int) -> Element:
    """The element that begins at `at`. Raises MalformedCertificate."""
    if at + 2 > end:
        raise MalformedCertificate("cut off")
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4 or begin + count > end:
            raise MalformedCertificate("a length that is none")
        length = int.from_bytes(der[begin : begin + count])
        begin += count
    if begin + length > end:
        raise MalformedCertificate("an element is longer than what it is in")
    return Element(tag, at, begin, begin + length)


def children(der: bytes, parent: Element) -> list[Element]:
    found = []
    at = parent.begin
    while at < parent.end:
        found.append(read_element(der, at, parent.end))
        at = found[-1].end
    return found


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate. Raises MalformedCertificate."""
    outer = read_element(certificate, 0, len(certificate))
    parts = children(certificate, outer)
    if outer.tag != SEQUENCE or not parts or parts[0].tag != SEQUENCE:
        raise MalformedCertificate("no certificate")
    # version (optional), serial number, signature algorithm, issuer, validity, subject
    fields = children(certificate, parts[0])
    place = 5 if fields and fields[0].tag == VERSION else 4
    if len(fields) <= place:
        raise MalformedCertificate("no subject")
    return _distinguished_name(certificate, fields[place])


def _distinguished_name(der: bytes, name: Element) -> str:
    sets = [
        "+".join(_attribute(der, attribute) for attribute in children(der, one))
        for one in children(der, name)
    ]
    return ",".join(reversed(sets))


def _attribute(der: bytes, attribute: Element) -> str:
    parts = children(der, attribute)
    if len(parts) != 2 or parts[0].tag != OID:
        raise MalformedCertificate("an attribute is not a type and a value")
    oid, value = _oid(der[parts[0].begin : parts[0].end]), parts[1]
    short, encoding = SHORT_NAMES.get(oid), TEXT_TAGS.get(value.tag)
    if short is None or encoding is None:
        return f"{short or oid}=#{der[value.start : value.end].hex()}"
    try:
        return f"{short}={escape(der[value.begin : value.end].decode(encoding))}"
    except UnicodeDecodeError as error:
        raise MalformedCertificate(f"{short} is not text") from error


def _oid(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise MalformedCertificate("an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def escape(value: str) -> str:
    """The characters that mean something in a name, and blanks and '#' where they would be lost."""
    out = ["\\" + char if char in ESCAPED else char for char in value]
    if value[:1] in (" ", "#"):
        out[0] = "\\" + value[0]
    if len(value) > 1 and value[-1] == " ":
        out[-1] = "\\ "
    return "".join(out)
