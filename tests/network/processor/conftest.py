from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processor_rig import Rig


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Make a processor's turn, with the module's `RIG` if it has one."""
    made = Rig(**getattr(request.module, "RIG", {}))
    yield made
    made.close()
