"""Clients of a test's own cluster, closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.client.fakes import Rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    with ExitStack() as stack:

        def make(addresses: int = 1, **settings: Any) -> Rig:
            return stack.enter_context(closing(Rig(addresses, **settings)))

        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()
