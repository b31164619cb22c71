"""Patterns of topics mean what Java says that they mean."""

from __future__ import annotations

import pytest

from mpbroker.reading.errors import OptionError
from mpbroker.reading.java_regex import compile_java
from mpbroker.reading.options import SubscribePattern, parse_options

NAMES = [
    "a",
    "ab",
    "aab",
    "b",
    "A",
    "B1",
    "orders",
    "orders.eu",
    "orders-eu",
    "orders_eu",
    "Orders2",
    "7",
    "__x",
]


# What Java's Pattern.matcher(name).matches() says of the names above.
@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        (".*", NAMES),
        ("a", ["a"]),
        ("a|b", ["a", "b"]),
        ("a+b", ["ab", "aab"]),
        ("a++b", ["ab", "aab"]),
        ("a*+ab", []),
        ("(?>a*)ab", []),
        ("a{2}b", ["aab"]),
        ("a{1,}b", ["ab", "aab"]),
        (r"orders\.eu", ["orders.eu"]),
        ("orders.eu", ["orders.eu", "orders-eu", "orders_eu"]),
        (r"orders[._-]\w+", ["orders.eu", "orders-eu", "orders_eu"]),
        (r"\Qorders.\Eeu", ["orders.eu"]),
        (r"\Qorders.eu", ["orders.eu"]),
        (r"\p{Lower}+", ["a", "ab", "aab", "b", "orders"]),
        (r"\p{Upper}\p{Alnum}*", ["A", "B1", "Orders2"]),
        (r"\p{Lu}\pN?", ["A", "B1"]),
        (r"\P{Alpha}", ["7"]),
        (r"\p{IsAlphabetic}+", ["a", "ab", "aab", "b", "A", "orders"]),
        (r"\p{javaLowerCase}", ["a", "b"]),
        (r"\d", ["7"]),
        (r"[\d&&[^7]]", []),
        ("[a-z&&[^b]]", ["a"]),
        ("[a-c&&b-z]", ["b"]),
        ("[ab[A]]", ["a", "b", "A"]),
        ("[^a-z]", ["A", "7"]),
        ("[^a-z&&[^A]]", ["A", "7"]),
        (r"[\p{Lower}\p{Digit}]", ["a", "b", "7"]),
        ("(?i)ORDERS2?", ["orders", "Orders2"]),
        ("(?i:A)B1?", []),
        ("(?i:A)b", ["ab"]),
        ("(?!orders).+", ["a", "ab", "aab", "b", "A", "B1", "Orders2", "7", "__x"]),
        ("orders(?!.eu).*", ["orders"]),
        (".*(?<=eu)", ["orders.eu", "orders-eu", "orders_eu"]),
        (r"(?<first>a)\k<first>b", ["aab"]),
        (r"(a)\1b", ["aab"]),
        (r"\x61|\x{62}|\u0041|\0101", ["a", "b", "A"]),
        (r"^a$", ["a"]),
        (r"\Aa\z", ["a"]),
        (r"__\w", ["__x"]),
        ("", []),
    ],
)
def test_what_matches(pattern: str, matching: list[str]) -> None:
    compiled = compile_java(pattern)
    assert [name for name in NAMES if compiled.fullmatch(name)] == matching


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(", "missing"),
        ("a{,3}", "a { that begins no quantifier"),
        ("a{b", "a { that begins no quantifier"),
        ("*a", "nothing to repeat"),
        (r"\p{InGreek}", r"\\p\{InGreek\} cannot be honoured"),
        (r"\p{Lower", "has no end"),
        (r"\X", "cannot be honoured"),
        (r"\G", "cannot be honoured"),
        ("a(?i)b", "flags go to the beginning"),
        ("(?x)a b", "flags go to the beginning"),
        ("(?P<name>a)", "cannot be honoured"),
        ("(?(1)a|b)", "cannot be honoured"),
        ("[a", "ends too early"),
        ("[z-a]", "goes backwards"),
        ("a\\", "ends too early"),
        (r"\k{x}", "cannot be honoured"),
        ("(?<=a|bc)d", "look-behind requires fixed-width pattern"),
    ],
)
def test_what_cannot_be_honoured(pattern: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=f"subscribePattern: .*{complaint}"):
        parse_options({"subscribePattern": pattern, "log.dir": "/logs"})


def test_the_option() -> None:
    strategy = parse_options({"subscribePattern": r" \p{Lower}+ ", "log.dir": "/logs"}).strategy
    assert isinstance(strategy, SubscribePattern)
    assert strategy.pattern.fullmatch("orders")
    assert not strategy.pattern.fullmatch("Orders")
