"""Subjects as Java writes them, and the rules that make names of them."""

import contextlib
import re

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type as ASN1Type
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.security.names import escape, subject_of
from mpbroker.security.principals import NoRuleMatches, Principal, RuleError, map_subject, parse_rules
from tests.support.certificates import Authority

AUTHORITY = Authority()
SUBJECT = "CN=kafka1.example.com,OU=Dev,O=ACME,L=Berlin,ST=Berlin,C=DE"


def subject(*sets: tuple[x509.NameAttribute, ...]) -> str:
    """Write the subject of a certificate whose relative distinguished names are `sets`."""
    name = x509.Name([x509.RelativeDistinguishedName(one) for one in sets])
    return subject_of(AUTHORITY.sign(name).der)


def attribute(oid: str, value: str, encoding: ASN1Type | None = None) -> x509.NameAttribute:
    return x509.NameAttribute(x509.ObjectIdentifier(oid), value, encoding, _validate=False)


COMMON_NAME = "2.5.4.3"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("kafka1.example.com", "kafka1.example.com"),
        (" Jörg#=x ", r"\ Jörg\#\=x\ "),
        ('A, "B" + C', r"A\, \"B\" \+ C"),
        ("a;b<c>d\\e", r"a\;b\<c\>d\\e"),
        ("  two  spaces  ", r"\ \ two  spaces\ \ "),
        (" ", r"\ "),
        ("#x#", r"\#x\#"),
        ("a\nb\tc\x7f\x01", "a\nb\tc\x7f\x01"),
        ("a\0b", r"a\00b"),
        ("日本語 😀 e\u0301", "日本語 😀 e\u0301"),
    ],
)
def test_values_are_written_as_java_writes_them(value: str, written: str) -> None:
    """Each is what X500Principal.getName(RFC2253) of Java 17 says of the same certificate."""
    assert subject((attribute(COMMON_NAME, value),)) == f"CN={written}"


@pytest.mark.parametrize(
    ("encoding", "value", "written"),
    [
        (ASN1Type.PrintableString, "a/b:c'(d)?", "a/b:c'(d)?"),
        (ASN1Type.IA5String, "abc@x", "abc@x"),
        (ASN1Type.NumericString, "12345", "#12053132333435"),
        (ASN1Type.UniversalString, "Grüß", "#1c100000004700000072000000fc000000df"),
        # Java 17 takes these for UTF-8 whatever they are; the text is what who made the certificate meant.
        (ASN1Type.BMPString, "Grüße日", "Grüße日"),
    ],
)
def test_values_by_their_encoding(encoding: ASN1Type, value: str, written: str) -> None:
    assert subject((attribute(COMMON_NAME, value, encoding),)) == f"CN={written}"


def test_a_value_that_is_no_text() -> None:
    der = AUTHORITY.sign(x509.Name([attribute(COMMON_NAME, "Gruesse", ASN1Type.PrintableString)])).der
    assert der.count(b"Gruesse") == 1
    with pytest.raises(ValueError, match="a CN that is not text"):
        subject_of(der.replace(b"Gruesse", b"Gr\xfc\xdfe.."))


@pytest.mark.parametrize("length", [127, 128, 255, 256, 70_000])
def test_values_of_any_length(length: int) -> None:
    assert subject((attribute("2.5.4.9", "x" * length),)) == f"STREET={'x' * length}"


def test_attributes_without_a_short_name_are_written_as_java_writes_them() -> None:
    assert subject(
        (attribute("0.9.2342.19200300.100.1.25", "org"),),
        (attribute("2.5.4.9", "Main St. 1"), attribute("2.5.4.8", "Berlin")),
        (attribute("1.2.840.113549.1.9.1", "a@b", ASN1Type.IA5String),),
        (attribute("2.5.4.4", "S"), attribute("0.9.2342.19200300.100.1.1", "u1")),
        (attribute("1.2.3.4.5", "v"),),
        (attribute("2.999.1", "w"),),
    ) == (
        "2.999.1=#0c0177,1.2.3.4.5=#0c0176,2.5.4.4=#0c0153+UID=u1,1.2.840.113549.1.9.1=#1603614062,"
        "ST=Berlin+STREET=Main St. 1,DC=org"
    )


def test_an_empty_subject() -> None:
    assert subject() == ""


def test_bytes_that_are_no_certificate() -> None:
    for der in (b"", b"\x30\x00", AUTHORITY.sign(x509.Name([])).der[:-1]):
        with pytest.raises(ValueError, match=r"no X\.509 certificate"):
            subject_of(der)


@given(st.data())
def test_a_damaged_certificate_is_refused_or_read(data: st.DataObject) -> None:
    der = bytearray(AUTHORITY.certificate.public_bytes(Encoding.DER))
    at = data.draw(st.integers(0, len(der) - 1))
    der[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(der)))
    with contextlib.suppress(ValueError):
        assert isinstance(subject_of(bytes(der[:cut])), str)


@given(st.text(min_size=1))
def test_escaping_can_be_undone(value: str) -> None:
    escaped = re.compile(r"\\(00|.)", re.DOTALL)
    undone = escaped.sub(lambda found: "\0" if found[1] == "00" else found[1], escape(value))
    assert undone == value


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", SUBJECT),
        ("", SUBJECT),
        (r"RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "kafka1.example.com@Dev"),
        (r"RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "KAFKA1.EXAMPLE.COM"),
        (r"RULE:CN=([^.]*).*/User-$1/L", "user-kafka1"),
        (r"RULE:^nothing$/$0/,RULE:.*O=(\w+).*/\$$1/", "$ACME"),
        (r"RULE:CN=kafka/x/,DEFAULT", SUBJECT),
        (r"RULE:.*(x)?/[$1]/", "[]"),
    ],
)
def test_rules(rules: str, name: str) -> None:
    assert map_subject(parse_rules(rules), SUBJECT) == Principal(name)
    assert str(Principal(name)) == f"User:{name}"


@pytest.mark.parametrize(
    ("rules", "subject", "why"),
    [
        ("DEFAULT", "", "empty"),
        ("RULE:CN=(x?).*/$1/", "CN=ann", "empty"),
        ("DEFAULT", "CN=a\0b", "zero byte"),
        ("DEFAULT", "CN=\ud800", "not valid Unicode"),
    ],
)
def test_names_that_nobody_can_have(rules: str, subject: str, why: str) -> None:
    with pytest.raises(NoRuleMatches, match=why) as raised:
        map_subject(parse_rules(rules), subject)
    assert str(raised.value).encode()


def test_who_no_rule_covers_is_refused() -> None:
    with pytest.raises(NoRuleMatches):
        map_subject(parse_rules("RULE:CN=other/x/"), SUBJECT)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("default", "'default' is not a rule"),
        ("RULE:a/b", "is not a rule"),
        ("RULE:a/b/X", "is not a rule"),
        ("DEFAULT RULE:a/b/", "is not a rule"),
        ("RULE:(/b/", "is not a pattern"),
        ("RULE:(a)/$2/", "refers to a group"),
    ],
)
def test_what_is_no_rule(rules: str, message: str) -> None:
    with pytest.raises(RuleError, match=message.replace("(", r"\(")):
        parse_rules(rules)
