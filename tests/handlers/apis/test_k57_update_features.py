"""UpdateFeatures, through a handler whose peers are the test. Messages are Kafka's."""

from __future__ import annotations

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import UpdateFeaturesRequest
from tests.support.handler_rig import Rig

UPDATE = 57
UPGRADE, SAFE, UNSAFE = 1, 2, 3
TRANSACTION, METADATA, SHARE = "transaction.version", "metadata.version", "share.version"
NEEDS_TYPE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade."
)
Update = UpdateFeaturesRequest.FeatureUpdateKey
READY = ()


@pytest.mark.parametrize("version", range(3))
def test_the_level_that_a_feature_has_is_accepted(ready: Rig, version: int) -> None:
    updates = [Update(TRANSACTION, 2), Update(METADATA, 30), Update(SHARE, 0), Update(TRANSACTION, 2)]
    response = ready.ask(UPDATE, version, UpdateFeaturesRequest(feature_updates=updates))
    assert (response.error_code, response.error_message) == (0, None)
    results = [(one.feature, one.error_code, one.error_message) for one in response.results]
    assert results == ([(one.feature, 0, "NONE") for one in updates] if version < 2 else [])


@pytest.mark.parametrize("is_dry", [False, True])
@pytest.mark.parametrize(
    ("update", "why"),
    [
        (Update(TRANSACTION, 1, upgrade_type=UPGRADE), NEEDS_TYPE),
        (Update(TRANSACTION, 3, upgrade_type=UPGRADE), "Local controller 1 only supports versions 0-2"),
        (Update(TRANSACTION, 3, upgrade_type=SAFE), "Local controller 1 only supports versions 0-2"),
        (Update(TRANSACTION, 2, upgrade_type=0), "The controller does not support the given upgrade type."),
        (Update(TRANSACTION, -1, upgrade_type=SAFE), "A feature version cannot be less than 0."),
        (Update(TRANSACTION, 1, upgrade_type=UNSAFE), "It is 2 in this version of the broker."),
        (Update(METADATA, 29, upgrade_type=SAFE), "Local controller 1 only supports versions 30"),
        (Update(SHARE, 1), "Local controller 1 does not support this feature."),
        (Update("nonsense", 1), "Local controller 1 does not support this feature."),
        (Update("nonsense", 0), "Feature nonsense not found."),
    ],
)
def test_another_level_refuses_the_whole_request(ready: Rig, update: Update, why: str, is_dry: bool) -> None:
    request = UpdateFeaturesRequest(60_000, [Update(TRANSACTION, 2), update], is_dry)
    response = ready.ask(UPDATE, 2, request)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.error_message == (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {why}"
    )


def test_the_last_of_two_levels_counts(ready: Rig) -> None:
    updates = [Update(TRANSACTION, 9), Update(TRANSACTION, 2)]
    assert ready.ask(UPDATE, 2, UpdateFeaturesRequest(feature_updates=updates)).error_code == 0


def test_old_versions_have_no_upgrade_type(ready: Rig) -> None:
    """Kafka ignores that of version 0, too."""
    update = Update(TRANSACTION, 1, allow_downgrade=True)
    response = ready.ask(UPDATE, 0, UpdateFeaturesRequest(feature_updates=[update]))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.error_message.endswith(NEEDS_TYPE)
    assert response.results == []
