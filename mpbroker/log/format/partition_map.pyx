"""A number of each of many partitions, by topic and partition: 8 bytes for one, where a dict has 150.

Partitions of a topic are numbered from 0 on, so that theirs stand in an array. What is far behind the others,
as a name in a file may say, does not make the array any longer: it stands in a dict.
"""
from cpython cimport array
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t

import array
import sys
from collections.abc import Mapping, MutableMapping
from types import GenericAlias

cdef enum:
    NONE = -1

ABSENT = NONE
# Partitions that may be missing before one that is put behind them.
GAP_MOST = 64


cdef class _Numbers:
    """The native half: what a start does some ten times for each partition."""

    # Topic -> array of numbers, NONE where there is none.
    cdef dict near
    # (topic, partition) -> number.
    cdef dict far
    cdef Py_ssize_t count

    def __cinit__(self):
        self.near, self.far, self.count = {}, {}, 0

    cdef int64_t near_one(self, tuple key) except? NONE:
        """NONE if it stands in no array."""
        cdef int overflow = 0
        cdef long long partition
        cdef object numbers = self.near.get(key[0])
        if numbers is None:
            return NONE
        partition = PyLong_AsLongLongAndOverflow(key[1], &overflow)
        if overflow or not 0 <= partition < len(<array.array>numbers):
            return NONE
        return (<array.array>numbers).data.as_longlongs[partition]

    def __len__(self):
        return self.count

    def __contains__(self, key):
        return self.near_one(key) != NONE or (bool(self.far) and key in self.far)

    def __getitem__(self, key):
        cdef int64_t number = self.near_one(key)
        return number if number != NONE else self.far[key]

    def get(self, key, default=None):
        cdef int64_t number = self.near_one(key)
        return number if number != NONE else self.far.get(key, default)

    def __setitem__(self, key, number):
        cdef array.array numbers
        cdef Py_ssize_t there
        topic, partition = key
        if number < 0 or partition < 0:
            raise ValueError(f"{key} has the number {number}")
        is_far = bool(self.far) and key in self.far
        found = self.near.get(topic)
        there = len(<array.array>found) if found is not None else 0
        if is_far or partition > there + GAP_MOST:
            self.far[key] = number
            self.count += not is_far
            return
        numbers = found if found is not None else array.array("q")
        if partition < there:
            self.count += numbers.data.as_longlongs[<Py_ssize_t>partition] == NONE
            numbers.data.as_longlongs[<Py_ssize_t>partition] = number
            return
        numbers.extend([NONE] * (partition - there))
        numbers.append(number)
        self.near[topic] = numbers
        self.count += 1

    def __delitem__(self, key):
        if self.far.pop(key, None) is None:
            if self.near_one(key) == NONE:
                raise KeyError(key)
            numbers = self.near[key[0]]
            numbers[key[1]] = NONE
            while numbers and numbers[len(numbers) - 1] == NONE:
                numbers.pop()
            if not numbers:
                del self.near[key[0]]
        self.count -= 1

    def __iter__(self):
        for topic, numbers in self.near.items():
            for partition, number in enumerate(numbers):
                if number != NONE:
                    yield topic, partition
        yield from self.far

    def __sizeof__(self):
        return object.__sizeof__(self) + sum(sys.getsizeof(numbers) for numbers in self.near.values())

    cdef bint is_same(self, _Numbers other):
        return self.near == other.near and self.far == other.far

    cdef take(self, _Numbers other):
        """All that the other has, and nothing else."""
        self.near = {topic: numbers[:] for topic, numbers in other.near.items()}
        self.far, self.count = other.far.copy(), other.count

    def of(self, topic) -> list:
        """The partitions of a topic that have a number."""
        near = [n for n, number in enumerate(self.near.get(topic, ())) if number != NONE]
        return near + [partition for other, partition in self.far if other == topic]


class PerPartition(_Numbers, MutableMapping):
    """No number is negative."""

    __slots__ = ()
    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, numbers=None):
        if numbers is not None:
            self.put_all(numbers)

    def __eq__(self, other):
        if isinstance(other, _Numbers) and (<_Numbers>self).is_same(other):
            return True
        return isinstance(other, Mapping) and len(self) == len(other) and dict(self) == dict(other)

    def put_all(self, numbers) -> None:
        for key, number in numbers.items():
            self[key] = number

    def copy(self):
        made = PerPartition()
        (<_Numbers>made).take(self)
        return made
