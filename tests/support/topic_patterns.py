"""Regular expressions of RE2J's grammar and topic names, at random, and where RE2 and RE2J differ."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

NAME_CHARACTERS: Final = "abAB01._-"
# Kafka's longest name of a topic.
NAME_LENGTH_MAX: Final = 249

_LITERALS = (*"ab1_-", r"\.", r"\-", r"\x61", r"\x{62}", r"\Qa.\E", "é", "ab", "orders")
_CLASSES = (
    *(".", "[ab]", "[^a]", "[a-b0-9]", r"[\w.]", r"[^\d]", r"[\x41-\x42_]", "[[:alpha:]]", "[[:^digit:]]"),
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\pL", r"\PL", r"\pN", r"\p{Lu}", r"\p{^Lu}", r"\p{Greek}"),
    *(r"\p{Any}", "[-a]", "[a-]", "[]a]", "[^]a]", r"[\pL.]", "[é-ü]"),
)
_ASSERTIONS = ("^", "$", r"\A", r"\z", r"\b", r"\B")
_REPEATS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{1,2}?", "{0}", "{,2}")
_GROUPS = ("(", "(?:", "(?i:", "(?s:", "(?U:", "(?i-s:", "(?m:", "(?-i:")
# Each is invalid for RE2 as well as for RE2J, wherever it stands.
INVALID: Final = (
    *(
        r"(?=a)",
        r"(?!a)",
        r"(?<=a)",
        r"(?>a)",
        r"(a)\1",
        r"\Z",
        r"\G",
        r"\K",
        r"\u0061",
        r"\cA",
        r"\e",
        r"\8",
    ),
    *("a**", "a++", "a{1001}", "a{2,1}", "[b-a]", "[[:foo:]]", r"\p{Foo}", "(?x)a", "(?P<1-2>a)", "(?P<>a)"),
    *("(", ")", "[", "[]", "[^]", "*", "+", "?", "(?", "(?i", "\\", r"\x{110000}", r"\x{", r"a\x4", "(?P=n)"),
)


class Difference(NamedTuple):
    """A pattern that one of RE2J (`kafka_accepts`) and mpbroker (`is_accepted`) refuses."""

    pattern: str
    kafka_accepts: bool
    is_accepted: bool


# Compared with re2j-1.8.jar, which kafka-group-coordinator 4.3 requires.
DIFFERENCES: Final = {
    # What only RE2 accepts stays accepted: it harms nobody.
    r"\C is any byte": Difference(r"a\C", False, True),
    "two groups may have one name": Difference("(?P<n>a)(?P<n>b)", False, True),
    "names of groups may have any letters": Difference("(?P<é>a)", False, True),
    # What only RE2J accepts is refused, with what RE2 says of it.
    "a repeat in a repeat counts": Difference("(a{1000}){2}", True, False),
    "only ASCII characters are escaped": Difference(r"\é", True, False),
    # What costs too much is refused.
    "a pattern is long": Difference("a" * 5000, True, False),
    "a program is large": Difference(r"[\x{100}\pL]{1000}", True, False),
}


def random_pattern(random: Random, depth: int = 3) -> str:
    """Return a pattern, which nearly always is valid."""
    if random.random() < 0.005:
        return random.choice(INVALID)
    kind = random.randrange(10) if depth else random.randrange(5)
    match kind:
        case 0 | 1 | 2:
            return random.choice(_LITERALS)
        case 3:
            return random.choice(_CLASSES)
        case 4:
            return random.choice(_ASSERTIONS if random.random() < 0.3 else _CLASSES)
        case 5:
            return f"{random.choice(_GROUPS)}{random_pattern(random, depth - 1)})"
        case 6:
            return f"(?:{random_pattern(random, depth - 1)}){random.choice(_REPEATS)}"
        case 7:
            return random.choice(_CLASSES) + random.choice(_REPEATS)
        case 8:
            return "|".join(random_pattern(random, depth - 1) for _ in range(random.randrange(2, 4)))
        case _:
            return "".join(random_pattern(random, depth - 1) for _ in range(random.randrange(2, 5)))


def random_name(random: Random) -> str:
    """Return the name of a topic, which short patterns are likely to match."""
    length = NAME_LENGTH_MAX if random.random() < 0.02 else random.randrange(1, 6)
    return "".join(random.choices(NAME_CHARACTERS, k=length))
