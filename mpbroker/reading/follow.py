"""Follows the end offsets of topics for a streaming query: finds new records at once, is cheap when idle.

The end offsets of a broker on this host are read from its shared memory. Readers cannot ask the broker to
wake them, so they poll the versions of their partitions' slots, with pauses that grow while no records come.
Other brokers are polled over connections that stay open. After a second without records, the kernel watches
the files (`FileAlarm`), or a fetch waits for records at the broker.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import select
import time
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from mpbroker.reading.catalogs import local_catalog, open_catalog
from mpbroker.reading.errors import FilesUnavailable, OptionError, SourceUnavailable, warn_once
from mpbroker.reading.local_catalog import LocalCatalog
from mpbroker.reading.log_dirs import running_broker
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.plan import Catalog, PartitionBounds, RestoreHistory, selected
from mpbroker.reading.remote_catalog import RemoteCatalog
from shm.table import SlotTable

Bounds = Mapping[TopicPartition, PartitionBounds]

_LOG = logging.getLogger("mpbroker.spark")

# New topics and partitions are found within this time.
_METADATA_AGE_S = 1.0
_SHORTEST_PAUSE_S = 0.0002
# Spark's own part of a micro-batch takes ten times as long.
_LONGEST_PAUSE_S = 0.02
# A pause is the preceding quiet divided by this, which bounds the delay of the records that end the quiet.
_QUIET_TO_PAUSE = 50
# Asking the kernel about directories, or whether a broker lives, is ten times as dear as polling its memory.
_KERNEL_ANSWER_S = 0.1
# Each poll costs the brokers something, too.
_SHORTEST_REMOTE_PAUSE_S = 0.005
_LONGEST_REMOTE_PAUSE_S = 0.05
# After this much quiet pauses are at their longest, and an alarm or a waiting fetch pays off.
_QUIET_S = _QUIET_TO_PAUSE * _LONGEST_PAUSE_S
# The alarm may have missed the write of records that are published within this time after it was set.
_ALARM_SETS_IN_S = 0.1
# Each partition is a directory to watch, and the kernel limits how many a user may watch.
_ALARM_PARTITIONS_MAX = 256
# The answer of a fetch that waited without records is valid this long; the next one reports later records.
_FETCH_HOLDS_S = 0.05
# A pause is at least this many times as long as the poll before it: 1 % of a CPU.
_PAUSE_TO_POLL = 100

# IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_MOVE_SELF; IN_ONLYDIR (inotify.h).
_EVENTS: Final = 0x002 | 0x040 | 0x080 | 0x100 | 0x200 | 0x800 | 0x01000000


class Follower(Protocol):
    """Watches the partitions of a query, and the bounds of their readable offsets."""

    @property
    def catalog(self) -> Catalog:
        """Return the catalog with which tasks are planned, up to the bounds that the last `poll` returned."""

    @property
    def is_at_rest(self) -> bool:
        """Return whether no broker serves the partitions now. The known bounds may then be outdated."""

    @property
    def restore_history(self) -> RestoreHistory | None:
        """Return what knows whether the broker was restored; None if nothing does."""

    def poll(self) -> Bounds:
        """Return the bounds of all partitions now. Raises SourceUnavailable, OptionError."""

    def wait(self, timeout_s: float) -> None:
        """Wait until bounds or partitions may have changed, or for the timeout."""

    def close(self) -> None:
        """Close the catalog and its connections."""


def follow(options: ReadOptions) -> Follower:
    """Return a follower of the files or brokers that `open_catalog` chooses.

    Raises the errors of `open_catalog`, and OptionError for maxBytesPerTrigger without files.
    """
    # The stream retries by itself, see `stream.Stream`.
    options = dataclasses.replace(options, retries=0)
    catalog = open_catalog(options)
    if isinstance(catalog, LocalCatalog):
        return LocalFollower(catalog, options)
    if not isinstance(catalog, RemoteCatalog):
        from mpbroker.reading.bucket_catalog import BucketCatalog, BucketFollower

        assert isinstance(catalog, BucketCatalog)
        return BucketFollower(catalog, options)
    if options.max_bytes_per_trigger is not None:
        catalog.close()
        raise OptionError(
            "maxBytesPerTrigger needs the broker's files: Kafka's protocol does not report the bytes of a "
            "range of offsets. Set log.dir to a log directory that is here, or use maxOffsetsPerTrigger"
        )
    return RemoteFollower(catalog, options)


class _State(NamedTuple):
    """A state of the log: two are equal if nothing was published, created, deleted or moved in between."""

    directories: tuple[int, ...]
    versions: tuple[bytes, ...]


class _Watch:
    """Checks in a running broker's shared memory whether a catalog of its files is still current."""

    def __init__(self, catalog: LocalCatalog, wanted: Iterable[TopicPartition]) -> None:
        self._catalog = catalog
        # The wanted slots of each broker's table, for one native call over all of them.
        self._slots: dict[SlotTable, array[int]] = {}
        for table, number in catalog.slots(wanted):
            self._slots.setdefault(table, array("Q")).append(number)
        self._made_at = time.monotonic()
        self._alive_until = 0.0

    @property
    def is_served(self) -> bool:
        """Return whether the brokers from whose memory the catalog was read still run."""
        if time.monotonic() < self._alive_until:
            return True
        if not all(broker is not None and broker.is_running() for broker in self._catalog.brokers.values()):
            return False
        self._alive_until = time.monotonic() + _KERNEL_ANSWER_S
        return True

    def finds_broker(self) -> bool:
        """Return whether all log directories have a running broker now. A starting broker does not count."""
        try:
            return all(running_broker(Path(name), patience_s=0) for name in self._catalog.brokers)
        except FilesUnavailable:
            return False

    @property
    def is_due(self) -> bool:
        """Return whether the catalog has unserved partitions and is old enough to be read again."""
        return bool(self._catalog.unserved) and time.monotonic() - self._made_at > _KERNEL_ANSWER_S

    def state(self) -> _State:
        """Return the current state of the directories and of the slots. Raises OSError."""
        return _State(self._catalog.changes(), self.versions())

    def versions(self) -> tuple[bytes, ...]:
        return tuple(table.versions(slots) for table, slots in self._slots.items())


class LocalFollower:
    """Follows topics in log directories.

    While no broker runs, the bounds that the last broker published stay valid. They are not replaced by
    checkpointed high watermarks, which may be lower after a crash.
    """

    restore_history = None

    def __init__(self, catalog: LocalCatalog, options: ReadOptions) -> None:
        self._options = options
        self.catalog: LocalCatalog = catalog
        self._watch = _Watch(self.catalog, ())
        self._known = self._watch.state()
        # The catalog was out of date before its state was read.
        self._is_outdated = False
        self._bounds: Bounds = {}
        # Time of the last publication or write, certain or possible.
        self._stirred_at = 0.0
        self._alarm: FileAlarm | None = None
        self._alarm_set_at = 0.0
        self._has_alarms = True
        self._use(catalog)

    @property
    def is_at_rest(self) -> bool:
        return not self._watch.is_served

    def poll(self) -> Bounds:
        try:
            self._poll()
        except FilesUnavailable as error:
            # For example, a starting broker has the directory and has not published its partitions yet.
            warn_once(f"the bounds published before still hold: {error}", self._options.log_dirs[0])
        return self._bounds

    def _poll(self) -> None:
        if not self._watch.is_served:
            self._poll_at_rest()
            return
        state = self._watch.state()
        if self._is_outdated or state.directories != self._known.directories or self._watch.is_due:
            # If the broker ends between the two, the catalog is at rest, and the next poll finds that out.
            self._use_if_current(self._opened())
        elif state.versions != self._known.versions:
            if self.catalog.refresh(self._bounds):
                bounds = self.catalog.bounds(list(self._bounds))
                self._check_alarm(bounds)
                self._bounds, self._known = bounds, state
                self._stir()
            else:
                self._use_if_current(self._opened())

    def wait(self, timeout_s: float) -> None:
        now = time.monotonic()
        deadline, reads_directories = now + timeout_s, now
        while True:
            begun = now
            has_changed = False
            if begun >= reads_directories or self._watch.versions() != self._known.versions:
                reads_directories = begun + _KERNEL_ANSWER_S
                has_changed = self._has_changed()
            now = time.monotonic()
            if has_changed or now >= deadline:
                return
            if self._alarm_watches(now):
                assert self._alarm is not None
                if self._alarm.wait(deadline - now):
                    # Written records are published soon.
                    self._stir()
            else:
                quiet = min((now - self._stirred_at) / _QUIET_TO_PAUSE, _LONGEST_PAUSE_S)
                pause = max(_SHORTEST_PAUSE_S, quiet, _PAUSE_TO_POLL * (now - begun))
                time.sleep(min(pause, deadline - now))
            now = time.monotonic()

    def close(self) -> None:
        self._stir()
        self.catalog.close()

    def _stir(self) -> None:
        """Close the alarm and poll at short intervals again, since more records may come soon."""
        self._stirred_at = time.monotonic()
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _alarm_watches(self, now: float) -> bool:
        """Set the alarm if no records came for a while. Return whether an alarm reports all writes now."""
        if self._alarm is None:
            is_worth_it = now - self._stirred_at >= _QUIET_S and len(self._bounds) <= _ALARM_PARTITIONS_MAX
            if not (is_worth_it and self._has_alarms and self._watch.is_served):
                return False
            try:
                self._alarm = FileAlarm(self.catalog.directories(self._bounds))
            except OSError as error:
                _LOG.debug("no alarm: %s", error)
                self._stir()
                return False
            self._alarm_set_at = now
        return now - self._alarm_set_at >= _ALARM_SETS_IN_S

    def _check_alarm(self, found: Bounds) -> None:
        """Use no alarms from now on if the current one did not report the new records in `found`."""
        if self._alarm is None or not self._alarm_watches(time.monotonic()) or self._alarm.wait(0):
            return
        if any(found[one].end != known.end for one, known in self._bounds.items()):
            self._has_alarms = False

    def _has_changed(self) -> bool:
        """Return whether a poll may find other bounds; always False without a running broker."""
        return self._watch.is_served and (
            self._is_outdated or self._watch.state() != self._known or self._watch.is_due
        )

    def _opened(self) -> LocalCatalog:
        return local_catalog(self._options)

    def _poll_at_rest(self) -> None:
        state = self._watch.state()
        if self._watch.finds_broker():
            self._use(self._opened())
        elif state.directories != self._known.directories:
            self._known = state
            self._use_if_current(self._opened())

    def _use_if_current(self, catalog: LocalCatalog) -> None:
        """Use the catalog unless it is outdated.

        It is outdated if no broker runs, and a known partition is missing, recreated or shorter in it.
        """
        if None in catalog.brokers.values():
            found = catalog.bounds(selected(catalog, self._options))
            for one, known in self._bounds.items():
                if one not in found or found[one].end < known.end or found[one].topic_id != known.topic_id:
                    return
        self._use(catalog)

    def _use(self, catalog: LocalCatalog) -> None:
        """Use this catalog and its bounds from now on.

        Raises SourceUnavailable while the broker does not serve a known partition.
        """
        for one in self._bounds:
            if one in catalog.unserved:
                raise SourceUnavailable(f"{one[0]}-{one[1]} cannot be read: {catalog.unserved[one]}")
        wanted = selected(catalog, self._options)
        watch = _Watch(catalog, wanted)
        # As it was before directories were listed, and before slots are read: any later change is noticed.
        known = _State(catalog.changed_ns, watch.versions())
        self._is_outdated = watch.is_served and not catalog.refresh(wanted)
        self.catalog, self._watch, self._known = catalog, watch, known
        self._bounds = catalog.bounds(wanted)
        self._stir()


class RemoteFollower:
    """Follows topics of brokers: a poll sends one request to each leader, over connections that stay open."""

    is_at_rest = False

    def __init__(self, catalog: RemoteCatalog, options: ReadOptions) -> None:
        self._options = options
        self.catalog = catalog
        self._bounds: Bounds = {}
        self._read_at = -_METADATA_AGE_S
        self._pause_s = _SHORTEST_REMOTE_PAUSE_S
        self._poll_s = 0.0
        # Time of the last new records, certain or possible.
        self._stirred_at = 0.0
        # End of the validity of a fetch that waited without records.
        self._holds_until = 0.0

    @property
    def restore_history(self) -> RestoreHistory | None:
        return self.catalog.restore_history

    def poll(self) -> Bounds:
        begun = time.monotonic()
        if begun - self._read_at >= _METADATA_AGE_S:
            found = self.catalog.bounds(selected(self.catalog, self._options))
            self._read_at = begun
        elif begun < self._holds_until:
            return self._bounds
        else:
            ends = self.catalog.ends(list(self._bounds))
            found = {one: known._replace(end=ends[one]) for one, known in self._bounds.items()}
        if found != self._bounds:
            self._bounds, self._pause_s = found, _SHORTEST_REMOTE_PAUSE_S
            self._stirred_at = begun
        self._poll_s = time.monotonic() - begun
        return self._bounds

    def wait(self, timeout_s: float) -> None:
        self._holds_until = 0.0
        if time.monotonic() - self._stirred_at >= _QUIET_S:
            ends = {one: known.end for one, known in self._bounds.items()}
            match self.catalog.await_records(ends, timeout_s):
                case True:
                    self._stirred_at = time.monotonic()
                    return
                case False:
                    self._holds_until = time.monotonic() + _FETCH_HOLDS_S
                    return
        time.sleep(min(timeout_s, max(self._pause_s, _PAUSE_TO_POLL * self._poll_s)))
        self._pause_s = min(2 * self._pause_s, _LONGEST_REMOTE_PAUSE_S)

    def close(self) -> None:
        self.catalog.close()


class FileAlarm:
    """Reports writes to files in directories, and files created or deleted there, using Linux's inotify.

    An alarm is set only while no records come, so that reports do not slow a broker under load. For some file
    systems, such as network file systems, the kernel reports nothing.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        """Start to watch. Raises OSError if a directory does not exist or the kernel's limit is reached."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        try:
            for one in directories:
                _checked(self._libc.inotify_add_watch(self._fd, os.fsencode(one), _EVENTS), one)
        except OSError:
            self.close()
            raise

    def wait(self, timeout_s: float) -> bool:
        """Wait for a write until the timeout. Return whether there was a write since the alarm was made."""
        return bool(self._poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)


def _checked(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), None if path is None else str(path))
    return result
