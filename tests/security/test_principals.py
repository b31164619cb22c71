"""Subjects as Java writes them, and the rules that make names of them."""

import contextlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.security.names import MalformedCertificate, escape, subject_of
from mpbroker.security.principals import NoRuleMatches, Principal, RuleError, map_subject, parse_rules
from tests.support.certificates import Authority

AUTHORITY = Authority()
SUBJECT = "CN=kafka1.example.com,OU=Dev,O=ACME,L=Berlin,ST=Berlin,C=DE"


def test_a_subject_is_written_as_java_writes_it() -> None:
    attributes = [
        x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "org"),
        x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'A, "B" + C'),
        x509.NameAttribute(NameOID.COMMON_NAME, " Jörg#=x "),
        x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b"),
    ]
    signed = AUTHORITY.sign(x509.Name(attributes))
    assert subject_of(signed.der) == (
        '1.2.840.113549.1.9.1=#1603614062,CN=\\ Jörg#\\=x\\ ,O=A\\, \\"B\\" \\+ C,C=DE,DC=org'
    )


def test_an_empty_subject() -> None:
    assert subject_of(AUTHORITY.sign(x509.Name([])).der) == ""


@given(st.data())
def test_a_damaged_certificate_is_refused_or_read(data: st.DataObject) -> None:
    der = bytearray(AUTHORITY.certificate.public_bytes(Encoding.DER))
    at = data.draw(st.integers(0, len(der) - 1))
    der[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(der)))
    with contextlib.suppress(MalformedCertificate):
        assert isinstance(subject_of(bytes(der[:cut])), str)


@given(st.text(min_size=1))
def test_escaping_can_be_undone(value: str) -> None:
    out, text = "", escape(value)
    while text:
        out, text = (out + text[1], text[2:]) if text[0] == "\\" else (out + text[0], text[1:])
    assert out == value


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
        ("DEFAULT", "CN=\ud800", "no valid Unicode"),
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
