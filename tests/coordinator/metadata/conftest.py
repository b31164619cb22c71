from __future__ import annotations

import pytest

from tests.support.decider_rig import DeciderRig


@pytest.fixture
def rig() -> DeciderRig:
    return DeciderRig()
