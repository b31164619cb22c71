"""Admission: the checks of a request before its API is called, and its charge to the client's quotas.

A client must have the permissions that its whole request needs. Administration is allowed on some listeners
only (admin.listener.names), and each act goes to the audit log with its result. A broker that does not lead
refuses what only the leader may answer. (Kafka: KafkaApis.handle, AuthHelper.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.requests.acted_on import names_in
from mpbroker.handlers.requests.audit import act_of, as_refusal, with_result
from mpbroker.handlers.requests.authorization import Authorization
from mpbroker.handlers.requests.leadership import (
    ANSWERS_UNKNOWN_TOPIC,
    UNKNOWN_TOPIC,
    Instead,
    answer_without_leadership,
)
from mpbroker.handlers.requests.permissions import ADMINISTRATION
from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.handlers.requests.responses import NO_PAUSE, Pause
from mpbroker.handlers.requests.throttling import Throttling
from mpbroker.ipc.leading import Leading
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.audit import Audit
from mpbroker.security.authorizer import Client
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.handlers")


class Refusal(NamedTuple):
    """The error for a refused request; None: its connection is closed.

    `message`, if any, replaces the error's text in the response. `is_last`: the connection is closed then.
    """

    code: ErrorCode | None
    message: str = ""
    is_last: bool = False


class Admission:
    """The checks of a handler, and the quotas of its clients."""

    def __init__(
        self,
        config: BrokerConfig,
        authorization: Authorization,
        audit: Audit,
        throttling: Throttling,
        leading: Leading,
    ) -> None:
        self._config = config
        self._authorization = authorization
        self._audit = audit
        self._leading = leading
        self.throttling = throttling

    def refusal(self, request: ReceivedRequest) -> Refusal | None:
        """Return the error if the request is refused; None if it is admitted."""
        is_admin, is_on = request.slot.api_key in ADMINISTRATION, self._authorization.is_on
        if request.api.is_forwarded and (is_admin or is_on):
            # Kept, because it is passed on as it came.
            request.raw_body()
        if is_admin and (why := self._begin_act(request)):
            return Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{request.api.name} is refused: {why}")
        if is_on and (code := self._authorization.refusal(request, request.body)):
            # The audit log has it as a refusal already.
            request.act = None
            return Refusal(code)
        return None if self._leading.leads() else _refusal_without_leadership(request)

    def knows_less_than_leader(self, request: ReceivedRequest, errors: Iterable[int]) -> bool:
        """Return whether another broker may answer what is answered with these errors here."""
        if UNKNOWN_TOPIC.isdisjoint(errors) or self._leading.leads():
            return False
        return request.slot.api_key in ANSWERS_UNKNOWN_TOPIC

    def _begin_act(self, request: ReceivedRequest) -> str:
        """Set `request.act` and return "", or return the reason if the listener forbids administration."""
        key, listener = ApiKey(request.slot.api_key), request.listener_name
        client = Client(request.session.principal, request.session.client_host)
        begun = act_of(client, listener, key, names_in(key, request.body))
        if self._config.may_administer(listener):
            request.act = begun
            return ""
        why = (
            f"listener {listener} is for clients alone: the broker is administered on "
            f"{', '.join(self._config.admin_listener_names)} (admin.listener.names)"
        )
        self._audit.tell(monotonic_ms(), as_refusal(begun, why))
        return why

    def end_act(self, request: ReceivedRequest, errors: dict[int, int] | None) -> None:
        """Write the request's act of administration, if any, to the audit log. If that fails, log why."""
        act, request.act = request.act, None
        if act is None:
            return
        try:
            self._audit.tell(monotonic_ms(), with_result(act, errors))
        except Exception:
            log.exception("%s: the audit log lacks its line", request)

    def charge(self, request: ReceivedRequest, response_bytes: int | None = None) -> Pause:
        """Charge the client at the first call for a request; return its pause.

        Only a Fetch passes `response_bytes`, the size of its response.
        """
        throttling = self.throttling
        if not throttling.on:
            return NO_PAUSE
        if request.pause is None:
            if response_bytes is None:
                request.pause = throttling.charge(request)
            else:
                request.pause = throttling.charge_fetch(request, response_bytes)
        return request.pause


def _refusal_without_leadership(request: ReceivedRequest) -> Refusal | None:
    answer = answer_without_leadership(request)
    if answer is Instead.SERVE:
        return None
    if isinstance(answer, Instead):
        return Refusal(None)
    return Refusal(answer, is_last=answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
