"""A coordinator within the coordinator process: its requests, its topic, and its part of the loop.

(Kafka: CoordinatorRuntime, which runs a CoordinatorShard.) A decoded request goes straight to the method that
serves its API. At most eight nested function calls lie between the ring, from which the request is taken, and
the queue of records to append (`tests/coordinator/test_request_paths.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.internal_topic import InternalTopic, Shard, TopicSpec
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Serve, Waiter
from mpbroker.ipc.calls import ForwardedRequest
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.wire import MalformedMessage
from shm import clock

log = logging.getLogger("mpbroker.coordinator")


ShardT = TypeVar("ShardT", bound=Shard)


class CoordinatorRuntime(Generic[ShardT]):
    def __init__(self, spec: TopicSpec, host: Host, shard: ShardT, answers: Answers) -> None:
        self.shard = shard
        self._served: Mapping[int, Serve] = {int(key): serve for key, serve in shard.served.items()}
        self._answers = answers
        self._topic = InternalTopic(spec, host, shard, self)
        # Requests for which the topic has to be created.
        self._held: list[tuple[Waiter, ForwardedRequest]] = []

    # --- requests

    def receive(self, waiter: Waiter, request: ForwardedRequest) -> None:
        """Serve a request. A failure is answered with an error and affects no other request."""
        try:
            # Decode before the topic is made: malformed bytes must not make it.
            message = self._answers.open(request)
            if self.shard.partitions.is_missing and request.api_key in self.shard.creators:
                self._hold(waiter, request)
                return
            serve = self._served[request.api_key]
            context = RequestContext(
                waiter, request.version, request.client_id, request.client_host, request.principal
            )
            response = serve(context, message)
            if response is not None:
                self._answers.answer(waiter, response)
        except MalformedMessage as error:
            self._answers.refuse(waiter, str(error))
        except ApiError as error:
            self._fail(waiter, error.code)
        except Exception:
            log.exception("a forwarded request failed: API key %d", request.api_key)
            self._fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _fail(self, waiter: Waiter, error: ErrorCode) -> None:
        """Answer a failed request. If the request had begun to wait, end its wait, so it is answered once."""
        self.shard.withdraw(waiter)
        self._answers.fail(waiter, error)

    def _hold(self, waiter: Waiter, request: ForwardedRequest) -> None:
        self._held.append((waiter, request))
        if len(self._held) == 1:
            self._topic.create()

    def abandon(self, waiter: Waiter) -> None:
        """End the wait of a request whose client has disconnected."""
        if any(held == waiter for held, _ in self._held):
            self._held = [entry for entry in self._held if entry[0] != waiter]
            self._answers.fail(waiter, ErrorCode.NETWORK_EXCEPTION)
        self._end_wait(waiter)

    def abandon_all(self, has_died: Callable[[Waiter], bool]) -> None:
        """Drop the requests of a handler that died."""
        self._held = [entry for entry in self._held if not has_died(entry[0])]
        for waiter in filter(has_died, self.shard.waiters()):
            self._end_wait(waiter)

    def _end_wait(self, waiter: Waiter) -> None:
        """End the wait of one request. Log exceptions: they must not affect other requests."""
        try:
            self.shard.abandon(waiter)
        except Exception:
            log.exception("the wait of a disconnected client's request could not be ended")

    # --- the topic

    def creation_failed(self) -> None:
        held, self._held = self._held, []
        for waiter, _ in held:
            self._answers.fail(waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def topic_loaded(self) -> None:
        self.shard.topic_loaded()
        held, self._held = self._held, []
        for waiter, request in held:
            self.receive(waiter, request)

    # --- the loop's view

    def log_died(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR: the outcome of appends is unknown."""
        self._topic.unload()

    def step(self, is_serving: bool) -> None:
        """Do all possible work. `is_serving`: the log workers are up and have opened all topics."""
        if is_serving:
            self._topic.load()
        self.shard.tick()
        if is_serving:
            self._topic.append_round()

    def sleep_ms(self, most_ms: int) -> int:
        """Return how long the loop may sleep, at most `most_ms`."""
        if self._topic.is_loading:
            return self._topic.load_delay_ms(most_ms)
        deadline_ms = self.shard.timers.next_deadline_ms()
        if deadline_ms is None:
            return most_ms
        return max(0, min(most_ms, deadline_ms - clock.monotonic_ms()))

    @property
    def has_work(self) -> bool:
        """True if records wait to be appended and no round is under way."""
        return self.shard.queue.has_work

    @property
    def is_idle(self) -> bool:
        """True if no append is waiting or under way. Requests that wait for other members do not count."""
        return self.shard.queue.is_idle
