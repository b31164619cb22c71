"""A client that creates and deletes topics all the time, and what must be true of them at the end."""

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

PREFIX = "passing-"
PARTITIONS = 3
KEPT = 5
PACE_S = 0.1
ATTEMPTS = 100
REQUEST_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 60.0

# What a client may be told while processes die: nobody knows whether it was done, or it was not.
UNDECIDED = {
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
    KafkaError._TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
}

Ask = Callable[[], Mapping[str, "Future[None]"]]


@dataclass
class Topics:
    """`there` and `gone` are what was answered; a topic whose request failed is in neither."""

    bootstrap: str
    there: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    failures: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(2 * ANSWER_TIMEOUT_S)
        if self.thread.is_alive():
            self.complaints.append("the client that creates topics hangs")

    abandon = stop

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _run(self) -> None:
        admin = self._admin()
        for number in itertools.count():
            if self.stopping.wait(PACE_S):
                return
            name = f"{PREFIX}{number}"
            wanted = NewTopic(name, PARTITIONS, 1)

            def create(wanted: NewTopic = wanted) -> Mapping[str, "Future[None]"]:
                return admin.create_topics([wanted], request_timeout=REQUEST_TIMEOUT_S)

            if self._done(name, create, {KafkaError.TOPIC_ALREADY_EXISTS}):
                self.there.add(name)
            oldest = f"{PREFIX}{number - KEPT}"
            if oldest in self.there:
                self.there.remove(oldest)

                def delete(oldest: str = oldest) -> Mapping[str, "Future[None]"]:
                    return admin.delete_topics([oldest], request_timeout=REQUEST_TIMEOUT_S)

                if self._done(oldest, delete, {KafkaError.UNKNOWN_TOPIC_OR_PART}):
                    self.gone.add(oldest)

    def _done(self, name: str, ask: Ask, done_before: set[int]) -> bool:
        """Return True if the change was made.

        If nobody knows, it is asked for again; then an earlier try may have made it.
        """
        for attempt in range(ATTEMPTS):
            try:
                ask()[name].result(ANSWER_TIMEOUT_S)
                return True
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if attempt and error.code() in done_before:
                    return True
                self.failures += 1
                if error.code() not in UNDECIDED:
                    self.complaints.append(f"{name}: {error}")
                    return False
            except TimeoutError:
                self.complaints.append(f"{name}: no answer for {ANSWER_TIMEOUT_S:.0f} s")
                return False
            self.stopping.wait(PACE_S)
        self.complaints.append(f"{name}: asked {ATTEMPTS} times in vain")
        return False

    def check(self) -> list[str]:
        """Every complaint, with those about the topics that the broker has now."""
        listed = self._admin().list_topics(timeout=ANSWER_TIMEOUT_S).topics
        whole = {name for name, topic in listed.items() if len(topic.partitions) == PARTITIONS}
        lost = [f"{name} was created and is not there" for name in sorted(self.there - whole)]
        returned = [f"{name} was deleted and is there" for name in sorted(self.gone & listed.keys())]
        return [*self.complaints, *lost, *returned]
