"""A broker with TLS and SASL that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.support.real_brokers import served
from tests.support.secure_broker import SecureBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running
