"""Translates Java's regular expressions (java.util.regex.Pattern) into Python's, for names of topics.

Topic names consist of ASCII letters, digits, `.`, `_` and `-`, so a character class becomes the ASCII
characters in it. Groups, quantifiers (also possessive ones) and assertions are the same in both languages. A
construct that only Java has is an error, and so is one that Java itself refuses. (RE2 is no alternative: it
lacks look-ahead, with which patterns exclude topics.)
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable
from typing import Final

_ASCII: Final = frozenset(map(chr, range(128)))
_VISIBLE: Final = string.ascii_letters + string.digits + string.punctuation
_PROPERTIES: Final = {
    name: frozenset(characters)
    for names, characters in (
        ("lower ll lowercase javalowercase", string.ascii_lowercase),
        ("upper lu uppercase javauppercase", string.ascii_uppercase),
        ("alpha l alphabetic letter javaletter", string.ascii_letters),
        ("digit n nd javadigit", string.digits),
        ("alnum javaletterordigit", string.ascii_letters + string.digits),
        ("punct", string.punctuation),
        ("graph", _VISIBLE),
        ("print", _VISIBLE + " "),
        ("blank", " \t"),
        ("cntrl", [*map(chr, range(32)), "\x7f"]),
        ("xdigit", string.hexdigits),
        ("space", string.whitespace),
        ("ascii", _ASCII),
    )
    for name in names.split()
}
_CLASSES: Final = {
    "d": _PROPERTIES["digit"],
    "w": _PROPERTIES["alnum"] | {"_"},
    "s": _PROPERTIES["space"],
    "h": _PROPERTIES["blank"],
    "v": frozenset("\n\x0b\f\r"),
}
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_NUMBERED: Final = re.compile(r"0([0-3]?[0-7]{1,2})|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})")
_PROPERTY: Final = re.compile(r"\{([^}]*)\}|([^{])")
_LEADING_FLAGS: Final = re.compile(r"\(\?[imsu]+\)")
_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_FORMS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (_QUOTED, lambda found: re.escape(found[1])),
    (re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>"), lambda found: f"(?P={found[1]})"),
    (re.compile(r"\\[bBA]"), lambda found: found[0]),
    (re.compile(r"\\[zZ]"), lambda _: r"\Z"),
    # A group of its own: a digit that follows must not become part of the reference.
    (re.compile(r"\\[1-9]"), lambda found: f"(?:{found[0]})"),
    (re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>"), lambda found: f"(?P<{found[1]}>"),
    (re.compile(r"\((?!\?)|\(\?(?:[=!>]|<[=!]|[ims]*(?:-[ims]+)?:)"), lambda found: found[0]),
    (re.compile(r"\{\d+(,\d*)?\}|[^\\\[({]"), lambda found: found[0]),
)


class UnsupportedPattern(ValueError):
    """The pattern is invalid in Java, or cannot be translated; the text names the problem and its place."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in Java's syntax. Raises UnsupportedPattern."""
    translated = _Translation(pattern).whole()
    try:
        return re.compile(translated, re.ASCII)
    except re.error as error:
        raise UnsupportedPattern(f"{error.msg}, in '{pattern}'") from error


class _Translation:
    """One pass over a pattern; `_at` is the position of the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> str:
        made = []
        if flags := self._matched(_LEADING_FLAGS):
            # Names have only ASCII letters, for which Java's flag u changes nothing.
            made.append(flags[0].replace("u", "") if flags[0] != "(?u)" else "")
        while self._at < len(self._pattern):
            made.append(self._next())
        return "".join(made)

    def _next(self) -> str:
        for form, translated in _FORMS:
            if found := self._matched(form):
                return translated(found)
        match self._pattern[self._at]:
            case "{":
                raise self._wrong("a { that begins no quantifier has to be written \\{")
            case "(":
                raise self._wrong(
                    "this group cannot be honoured (flags go to the beginning, (?i)…, or to a group, (?i:…))"
                )
        characters = self._characters() & _ASCII
        return f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else "(?!)"

    def _characters(self) -> frozenset[str]:
        """Read a class in brackets, an escape or a character. Return the characters that it matches."""
        char = self._taken()
        if char == "[":
            return self._class()
        if char != "\\":
            return frozenset(char)
        if number := self._matched(_NUMBERED):
            code = int(number[1], 8) if number[1] else int(number[2] or number[3] or number[4], 16)
            if code > sys.maxunicode:
                raise self._wrong(f"there is no character {number[0]}")
            return frozenset(chr(code))
        char = self._taken()
        if char in "pP":
            found = self._property()
            return found if char == "p" else _ASCII - found
        if char.lower() in _CLASSES:
            found = _CLASSES[char.lower()]
            return found if char.islower() else _ASCII - found
        if char == "c":
            return frozenset(chr(ord(self._taken()) ^ 64))
        if char.isalnum() and char not in _CONTROL:
            raise self._wrong(f"\\{char} cannot be honoured")
        return frozenset(_CONTROL.get(char, char))

    def _property(self) -> frozenset[str]:
        """Read a name as in `\\p{Lower}`, `\\p{IsAlphabetic}`, `\\pL`. Return its characters."""
        name = self._matched(_PROPERTY)
        if name is None:
            raise self._wrong("\\p has no end")
        found = _PROPERTIES.get((name[1] or name[2] or "").lower().removeprefix("is"))
        if found is None:
            known = "Lower, Upper, Alpha, Digit, Alnum, Punct, XDigit, L, Lu, Ll, N, …"
            raise self._wrong(f"\\p{name[0]} cannot be honoured; known are {known}")
        return found

    def _class(self) -> frozenset[str]:
        """Read a class after its opening bracket: ranges, unions, intersections. Return its characters."""
        negated = self._skipped("^")
        found: frozenset[str] = frozenset()
        whole = _ASCII
        first = True
        while first or not self._skipped("]"):
            if not first and self._skipped("&&"):
                whole, found = whole & found, frozenset()
            else:
                found |= self._member()
            first = False
        found &= whole
        return _ASCII - found if negated else found

    def _member(self) -> frozenset[str]:
        """Read a member of a class: a quoted text, a set of characters, or a range. Return its characters."""
        if quoted := self._matched(_QUOTED):
            return frozenset(quoted[1])
        is_class = self._pattern.startswith("[", self._at)
        found = self._characters()
        following = self._pattern[self._at : self._at + 2]
        if is_class or len(found) != 1 or following[:1] != "-" or following[1:] in ("]", "[", ""):
            return found
        self._at += 1
        (low,), high = map(ord, found), sorted(self._characters())
        if len(high) != 1:
            raise self._wrong("a range ends with one character")
        if ord(high[0]) < low:
            raise self._wrong(f"the range {chr(low)}-{high[0]} goes backwards")
        return frozenset(map(chr, range(low, min(ord(high[0]), 127) + 1)))

    def _matched(self, form: re.Pattern[str]) -> re.Match[str] | None:
        found = form.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _taken(self) -> str:
        if self._at >= len(self._pattern):
            raise self._wrong("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _skipped(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _wrong(self, what: str) -> UnsupportedPattern:
        return UnsupportedPattern(f"{what}, at position {self._at} of '{self._pattern}'")
