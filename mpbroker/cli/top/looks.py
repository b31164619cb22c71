"""The threads that look at the broker while the terminal is drawn.

They end with the program, whatever they wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from mpbroker.cli.top.watch import BrokerFlags, GroupWatch, Watch
from mpbroker.observe.samples import BrokerSeen, Groups, Health, Sample

GROUPS_EVERY_S: Final = 2.0
"""Groups are asked for over the network, and lag is no number that changes its meaning within a second."""


class Looks:
    """Takes samples at an interval, and groups while somebody looks at them.

    `seen` and `groups_seen` are called by the threads.
    """

    def __init__(
        self,
        watch: Watch,
        wanted: BrokerFlags,
        interval_s: float,
        seen: Callable[[Sample], object],
        groups_seen: Callable[[Groups], object],
    ) -> None:
        self._watch = watch
        self._groups = GroupWatch(wanted)
        self._interval_s = interval_s
        self._seen = seen
        self._groups_seen = groups_seen
        self._ended = threading.Event()
        self._are_groups_wanted = threading.Event()
        self._broker = BrokerSeen(Health.UNKNOWN)

    def start(self) -> None:
        for name, work in (("samples", self._look), ("groups", self._look_at_groups)):
            threading.Thread(target=work, name=f"mpbroker top: {name}", daemon=True).start()

    def want_groups(self, wanted: bool) -> None:
        if wanted:
            self._are_groups_wanted.set()
        else:
            self._are_groups_wanted.clear()

    def end(self) -> None:
        self._ended.set()
        self._are_groups_wanted.set()

    def _look(self) -> None:
        while not self._ended.wait(self._interval_s):
            sample = self._watch.look()
            self._broker = sample.broker
            self._seen(sample)
            groups = self._watch.groups_at_rest()
            if groups is not None:
                self._groups_seen(groups)

    def _look_at_groups(self) -> None:
        while not self._ended.is_set():
            self._are_groups_wanted.wait()
            if self._ended.is_set():
                break
            if self._broker.health in (Health.RUNNING, Health.NOT_READY):
                self._groups_seen(self._groups.look(self._broker))
            self._ended.wait(max(self._interval_s, GROUPS_EVERY_S) if self._broker.pid else self._interval_s)
        self._groups.close()
