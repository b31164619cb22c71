from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.handlers.shared import Rig
from tests.handlers.shared import rig as make_rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with make_rig() as made:
        yield made
