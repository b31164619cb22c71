"""Regular expressions of clients, in time that is linear in the text (Kafka uses RE2/J for them).

Python's `re` goes back when it fails, and a pattern of a dozen characters can keep it busy for hours; the
coordinator has one thread for everybody. Here the states in which a match can be are followed all at once,
and which set follows which is remembered. RE2's syntax without flags, Unicode classes and word boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

# RE2 allows as many repetitions.
REPEATS_MAX: Final = 1000
DEPTH_MAX: Final = 100
STATES_MAX: Final = 4_000
REMEMBERED_MAX: Final = 10_000

Test: TypeAlias = Callable[[str], bool]
Build: TypeAlias = Callable[[int], int]
"""Makes the states of a part of the pattern; from the state behind it to its first one."""

MATCH: Final = 0

_DIGITS: Final = frozenset("0123456789")
_SPACES: Final = frozenset("\t\n\f\r ")
_WORD: Final = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_CLASSES: Final = {"d": _DIGITS, "s": _SPACES, "w": _WORD}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class BadPattern(ValueError):
    """It is no regular expression, or of a kind that is not known here."""


class Pattern:
    """Raises BadPattern."""

    def __init__(self, text: str) -> None:
        # A state goes on by a character that passes its test, or without one to several others.
        self._tests: list[Test | None] = [None]
        self._next: list[tuple[int, ...]] = [()]
        self._remembered: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._begin_only: set[int] = set()
        self._end_only: set[int] = set()
        parser = _Parser(text, self)
        self._start = parser.whole()(MATCH)

    def matches(self, text: str) -> bool:
        """All of the text."""
        states = self._closure({self._start}, at_begin=True)
        for character in text:
            if not states:
                return False
            found = self._remembered.get((states, character))
            if found is None:
                found = self._step(states, character)
            states = found
        return MATCH in self._closure(states, at_begin=not text, at_end=True)

    def add(self, test: Test | None, *following: int) -> int:
        if len(self._tests) >= STATES_MAX:
            raise BadPattern("it is too large")
        self._tests.append(test)
        self._next.append(following)
        return len(self._tests) - 1

    def link(self, state: int, *following: int) -> None:
        self._next[state] = following

    def add_begin(self, following: int) -> int:
        state = self.add(None, following)
        self._begin_only.add(state)
        return state

    def add_end(self, following: int) -> int:
        state = self.add(None, following)
        self._end_only.add(state)
        return state

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        reached: set[int] = set()
        for state in states:
            test = self._tests[state]
            if test is not None and test(character):
                reached.update(self._next[state])
        found = self._closure(reached)
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[states, character] = found
        return found

    def _closure(
        self, states: set[int] | frozenset[int], *, at_begin: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """Those that are reached without a character, too."""
        found = set(states)
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if self._tests[state] is not None:
                continue
            if (state in self._begin_only and not at_begin) or (state in self._end_only and not at_end):
                continue
            for following in self._next[state]:
                if following not in found:
                    found.add(following)
                    waiting.append(following)
        return frozenset(found)


class _Parser:
    def __init__(self, text: str, pattern: Pattern) -> None:
        self._text = text
        self._at = 0
        self._pattern = pattern

    def whole(self) -> Build:
        found = self._either(0)
        if self._at < len(self._text):
            raise BadPattern("a parenthesis is closed that is not open")
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise BadPattern("it ends too early")
        self._at += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _either(self, depth: int) -> Build:
        if depth > DEPTH_MAX:
            raise BadPattern("its parentheses are nested too deep")
        ways = [self._sequence(depth)]
        while self._skip("|"):
            ways.append(self._sequence(depth))
        if len(ways) == 1:
            return ways[0]
        return lambda behind: self._pattern.add(None, *[way(behind) for way in ways])

    def _sequence(self, depth: int) -> Build:
        parts: list[Build] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._one(depth)))

        def build(behind: int) -> int:
            for part in reversed(parts):
                behind = part(behind)
            return behind

        return build

    def _repeated(self, one: Build) -> Build:
        limits = self._limits()
        if limits is None:
            return one
        self._skip("?")
        if self._limits() is not None:
            raise BadPattern("a repetition is repeated")
        least, most = limits

        def build(behind: int) -> int:
            if most is None:
                again = self._pattern.add(None)
                self._pattern.link(again, one(again), behind)
                first = again
            else:
                first = behind
                for _ in range(most - least):
                    first = self._pattern.add(None, one(first), behind)
            for _ in range(least):
                # A state of its own: also the repetition of nothing counts.
                first = self._pattern.add(None, one(first))
            return first

        return build

    def _limits(self) -> tuple[int, int | None] | None:
        """At least, and at most; None: as often as it likes."""
        for sign, limits in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return limits
        end = self._text.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not low.isdecimal() or not (high.isdecimal() or not high):
            return None
        self._at = end + 1
        least = int(low)
        most = int(high) if high else (None if comma else least)
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise BadPattern("a repetition has limits that are not allowed")
        return least, most

    def _one(self, depth: int) -> Build:
        character = self._take()
        if character == "(":
            return self._group(depth)
        if character in "*+?":
            raise BadPattern("there is nothing to repeat")
        if character == "^":
            return self._pattern.add_begin
        if character == "$":
            return self._pattern.add_end
        if character == ".":
            test: Test = "\n".__ne__
        elif character == "[":
            test = self._class()
        elif character == "\\":
            test = self._escaped()
        else:
            test = character.__eq__
        return lambda behind: self._pattern.add(test, behind)

    def _group(self, depth: int) -> Build:
        if self._skip("?") and not self._skip(":"):
            end = self._text.find(">", self._at)
            if not (self._skip("P<") or self._skip("<")) or not self._text[self._at : end].isidentifier():
                raise BadPattern("a group of a kind that is not known")
            self._at = end + 1
        found = self._either(depth + 1)
        if not self._skip(")"):
            raise BadPattern("a parenthesis is not closed")
        return found

    def _escaped(self) -> Test:
        character = self._take()
        among = _CLASSES.get(character.lower())
        if among is not None:
            return among.__contains__ if character.islower() else lambda c: c not in among
        return self._literal(character).__eq__

    def _literal(self, escaped: str) -> str:
        if escaped in _CONTROLS:
            return _CONTROLS[escaped]
        if escaped.isascii() and escaped.isalnum():
            raise BadPattern(f"\\{escaped} is not known")
        return escaped

    def _class(self) -> Test:
        is_negated = self._skip("^")
        ranges: list[tuple[str, str]] = []
        tests: list[Test] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            low = self._take()
            if low == "\\":
                if self._peek().lower() in _CLASSES:
                    tests.append(self._escaped())
                    continue
                low = self._literal(self._take())
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                high = self._take()
                if high == "\\":
                    high = self._literal(self._take())
            if high < low:
                raise BadPattern("a range goes backwards")
            ranges.append((low, high))
        self._take()

        def is_in(character: str) -> bool:
            found = any(low <= character <= high for low, high in ranges)
            return (found or any(test(character) for test in tests)) != is_negated

        return is_in
