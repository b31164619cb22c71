from __future__ import annotations

import pytest

from tests.support.transaction_rig import TransactionRig


@pytest.fixture
def rig() -> TransactionRig:
    return TransactionRig()
