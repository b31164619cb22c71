"""The audit of the console: what it has of a change, and how much of refused tokens."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from mpbroker.console.changes import decode
from mpbroker.console.changes_audit import ChangesAudit
from mpbroker.security.audit import LINES_EACH, NO_ANSWER

SCOPE = {"client": ("10.0.0.7", 5000)}


@pytest.fixture
def audit() -> ChangesAudit:
    config = Mock(audit_log_level="INFO", audit_log_file="", audit_log_format="text")
    return ChangesAudit(lambda: config)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().removeprefix("audit: ") for record in caplog.records]


async def test_refused_tokens_have_so_many_lines_and_a_sum(
    audit: ChangesAudit, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(LINES_EACH + 5):
        audit.refused_token(SCOPE, "the token is wrong")
    audit.close()
    *lines, sum_of_rest = told(caplog)
    assert lines == ["a client from 10.0.0.7 on HTTP has failed to log in: the token is wrong"] * LINES_EACH
    assert sum_of_rest.startswith("10.0.0.7: 5 more refused logins")


async def test_a_change_that_nobody_waited_for_is_told(
    audit: ChangesAudit, caplog: pytest.LogCaptureFixture
) -> None:
    audit.changed(SCOPE, decode(b'{"change":"delete-topic","topic":"t"}'), NO_ANSWER)
    audit.changed(SCOPE, None, "failed", "no JSON")
    assert told(caplog) == [
        "a client from 10.0.0.7 on HTTP asked for console delete-topic of 't': no answer",
        "a client from 10.0.0.7 on HTTP asked for console change: failed: no JSON",
    ]
