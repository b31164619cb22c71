"""UpdateFeatures (key 57), versions 0-2: accepts the levels that the features have, and refuses others.

The program's version decides the levels. A request is checked as Kafka checks it. A level that Kafka would
then set is refused too, with INVALID_UPDATE_VERSION. If one feature is refused, so is the whole request.
(Kafka: FeatureControlManager.updateFeatures, QuorumController.updateFeatures; KIP-584, KIP-778, KIP-1022.)
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.features import FINALIZED, SUPPORTED, oldest_level
from mpbroker.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

Update: TypeAlias = UpdateFeaturesRequest.FeatureUpdateKey
Result: TypeAlias = UpdateFeaturesResponse.UpdatableFeatureResult


class UpgradeType(IntEnum):
    """What a request may do to a level. (Kafka: FeatureUpdate.UpgradeType)"""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def failed(_: RequestContext, code: ErrorCode) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=code.message)


def problem_with(update: Update, node: int) -> str | None:
    """Return why the feature cannot get this level; None if it has the level."""
    name, level = update.feature, update.max_version_level
    current, oldest, latest = FINALIZED.get(name, 0), oldest_level(name), SUPPORTED.get(name, 0)
    if update.upgrade_type not in [*UpgradeType]:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if not oldest <= level <= latest:
        if not latest:
            return f"Local controller {node} does not support this feature."
        supported = f"{oldest}-{latest}" if oldest < latest else str(latest)
        return f"Local controller {node} only supports versions {supported}"
    if level < current and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if name not in SUPPORTED:
        return f"Feature {name} not found."
    return None if level == current else f"It is {current} in this version of the broker."


@api(
    ApiKey.UPDATE_FEATURES,
    0,
    2,
    name="UpdateFeatures",
    failed=failed,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> UpdateFeaturesResponse:
    """Accepts the levels that the broker's features have, and refuses others."""
    request: UpdateFeaturesRequest = context.body
    for update in {one.feature: one for one in request.feature_updates}.values():
        if problem := problem_with(update, context.broker.metadata.node_id):
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message="The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature {update.feature}. {problem}",
            )
    results = [Result(one.feature, error_message="NONE") for one in request.feature_updates]
    return UpdateFeaturesResponse(error_message=None, results=results)
