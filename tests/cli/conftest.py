"""A broker in memory for the commands to talk to: one thread, our codec on the other side of the wire."""

from collections.abc import Iterator

import pytest

from tests.support.fake_broker import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake
