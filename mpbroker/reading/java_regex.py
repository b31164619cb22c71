"""Translates Java's regular expressions into Python's, for names of topics (java.util.regex.Pattern).

The names of topics are of ASCII letters, digits, `.`, `_` and `-`, so a class of characters stands for the
ASCII characters in it. Groups, quantifiers (possessive ones too) and assertions are the same in both
languages. A construct that only Java has is reported as an error, and so is one that Java itself would
refuse.
"""

from __future__ import annotations

import re
import string
from typing import Final

_ASCII: Final = frozenset(map(chr, range(128)))
_PROPERTIES: Final = {
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "ascii": _ASCII,
    "alpha": frozenset(string.ascii_letters),
    "digit": frozenset(string.digits),
    "alnum": frozenset(string.ascii_letters + string.digits),
    "punct": frozenset(string.punctuation),
    "graph": frozenset(string.ascii_letters + string.digits + string.punctuation),
    "print": frozenset(string.ascii_letters + string.digits + string.punctuation + " "),
    "blank": frozenset(" \t"),
    "cntrl": frozenset([*map(chr, range(32)), "\x7f"]),
    "xdigit": frozenset(string.hexdigits),
    "space": frozenset(" \t\n\x0b\f\r"),
}
_ALIASES: Final = {
    "l": "alpha",
    "ll": "lower",
    "lu": "upper",
    "n": "digit",
    "nd": "digit",
    "alphabetic": "alpha",
    "letter": "alpha",
    "lowercase": "lower",
    "uppercase": "upper",
    "javalowercase": "lower",
    "javauppercase": "upper",
    "javaletter": "alpha",
    "javadigit": "digit",
    "javaletterordigit": "alnum",
}
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_CLASSES: Final = {
    "d": _PROPERTIES["digit"],
    "w": _WORD,
    "s": _PROPERTIES["space"],
    "h": _PROPERTIES["blank"],
    "v": frozenset("\n\x0b\f\r"),
}
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"b": r"\b", "B": r"\B", "A": r"\A", "z": r"\Z", "Z": r"\Z"}
_QUANTIFIER: Final = re.compile(r"\{\d+(,\d*)?\}")
_GROUP_NAME: Final = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>")
_LEADING_FLAGS: Final = re.compile(r"\(\?[imsu]+\)")
_SCOPED_FLAGS: Final = re.compile(r"[ims]*(-[ims]+)?:")


class UnsupportedPattern(ValueError):
    """The pattern is not valid in Java, or cannot be translated; the text says what, and where."""


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
        flags = _LEADING_FLAGS.match(self._pattern)
        if flags is not None:
            # Names have only ASCII letters, for which Java's flag u changes nothing.
            made.append(flags[0].replace("u", "") if flags[0] != "(?u)" else "")
            self._at = flags.end()
        while self._at < len(self._pattern):
            made.append(self._next())
        return "".join(made)

    def _next(self) -> str:
        char = self._taken()
        if char == "\\":
            return self._escape()
        if char == "[":
            return _class_of(self._class())
        if char == "(":
            return "(" + self._group()
        if char == "{":
            found = _QUANTIFIER.match(self._pattern, self._at - 1)
            if found is None:
                raise self._wrong("a { that begins no quantifier has to be written \\{")
            self._at = found.end()
            return found[0]
        return re.escape(char) if char in "#&~ \t\n" else char

    def _group(self) -> str:
        """Translate what follows an opening parenthesis, which says what kind of group it is."""
        if not self._skipped("?"):
            return ""
        name = _GROUP_NAME.match(self._pattern, self._at)
        if name is not None:
            self._at = name.end()
            return f"?P<{name[1]}>"
        for kind in (":", "=", "!", "<=", "<!", ">"):
            if self._skipped(kind):
                return f"?{kind}"
        flags = _SCOPED_FLAGS.match(self._pattern, self._at)
        if flags is None:
            raise self._wrong(
                "this group cannot be honoured (flags go to the beginning, (?i)…, or to a group, (?i:…))"
            )
        self._at = flags.end()
        return f"?{flags[0]}"

    def _escape(self) -> str:
        """Translate an escape outside of a class. Its backslash was just taken."""
        if self._skipped("Q"):
            return re.escape(self._quoted())
        if self._skipped("k"):
            name = _GROUP_NAME.match(self._pattern, self._at)
            if name is None:
                raise self._wrong("\\k wants a name, \\k<name>")
            self._at = name.end()
            return f"(?P={name[1]})"
        if self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char in _ANCHORS:
                self._at += 1
                return _ANCHORS[char]
            if char in "123456789":
                self._at += 1
                # A group of its own: a digit that follows must not become part of the reference.
                return f"(?:\\{char})"
        found = self._escaped_set()
        return _class_of(found) if len(found) != 1 else re.escape(next(iter(found)))

    def _escaped_set(self) -> frozenset[str]:
        """Return the characters that an escape stands for. Its backslash was just taken."""
        char = self._taken()
        if char in "pP":
            found = self._property()
            return found if char == "p" else _ASCII - found
        if char.lower() in _CLASSES:
            found = _CLASSES[char.lower()]
            return found if char.islower() else _ASCII - found
        if char in _CONTROL:
            return frozenset(_CONTROL[char])
        if char == "c":
            return frozenset(chr(ord(self._taken()) ^ 64))
        if char in "0xu":
            return frozenset(self._numbered(char))
        if char.isalnum():
            raise self._wrong(f"\\{char} cannot be honoured")
        return frozenset(char)

    def _numbered(self, kind: str) -> str:
        form = {"0": r"[0-3]?[0-7]{1,2}", "x": r"[0-9a-fA-F]{2}|\{[0-9a-fA-F]+\}", "u": r"[0-9a-fA-F]{4}"}
        found = re.compile(form[kind]).match(self._pattern, self._at)
        if found is None:
            raise self._wrong(f"\\{kind} wants digits")
        self._at = found.end()
        number = int(found[0].strip("{}"), 8 if kind == "0" else 16)
        if number > 0x10FFFF:
            raise self._wrong(f"there is no character {found[0]}")
        return chr(number)

    def _property(self) -> frozenset[str]:
        """Return the characters of `\\p{Lower}`, `\\p{IsAlphabetic}`, `\\pL`."""
        if self._skipped("{"):
            end = self._pattern.find("}", self._at)
            if end < 0:
                raise self._wrong("\\p{ has no end")
            name, self._at = self._pattern[self._at : end], end + 1
        else:
            name = self._taken()
        key = name.lower().removeprefix("is")
        found = _PROPERTIES.get(_ALIASES.get(key, key))
        if found is None:
            known = "Lower, Upper, Alpha, Digit, Alnum, Punct, XDigit, L, Lu, Ll, N, …"
            raise self._wrong(f"\\p{{{name}}} cannot be honoured; known are {known}")
        return found

    def _quoted(self) -> str:
        """Take the text up to `\\E`, or to the end."""
        end = self._pattern.find("\\E", self._at)
        text = self._pattern[self._at :] if end < 0 else self._pattern[self._at : end]
        self._at = len(self._pattern) if end < 0 else end + 2
        return text

    def _class(self) -> frozenset[str]:
        """Return the characters of a class whose bracket was just taken: ranges, unions, intersections."""
        negated = self._skipped("^")
        found: frozenset[str] = frozenset()
        parts: list[frozenset[str]] = []
        first = True
        while first or not self._skipped("]"):
            if not first and self._skipped("&&"):
                parts.append(found)
                found = frozenset()
                continue
            found |= self._member()
            first = False
        for part in parts:
            found &= part
        return _ASCII - found if negated else found

    def _member(self) -> frozenset[str]:
        """Take a member of a class: a class within it, an escape, a character, or a range of them."""
        char = self._taken()
        if char == "[":
            return self._class()
        if char == "\\":
            if self._skipped("Q"):
                return frozenset(self._quoted())
            found = self._escaped_set()
            if len(found) != 1:
                return found
            (char,) = found
        following = self._pattern[self._at : self._at + 2]
        if following[:1] != "-" or following[1:] in ("]", "[", ""):
            return frozenset(char)
        self._at += 1
        last = self._taken()
        if last == "\\":
            ends = self._escaped_set()
            if len(ends) != 1:
                raise self._wrong("a range ends with one character")
            (last,) = ends
        if last < char:
            raise self._wrong(f"the range {char}-{last} goes backwards")
        return frozenset(map(chr, range(ord(char), min(ord(last), 127) + 1)))

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


def _class_of(found: frozenset[str]) -> str:
    """Return a class of exactly these ASCII characters; an empty one matches nothing."""
    members = "".join(re.escape(char) for char in sorted(found & _ASCII))
    return f"[{members}]" if members else "(?!)"
