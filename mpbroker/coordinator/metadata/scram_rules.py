"""Alterations and descriptions of SCRAM credentials.

A request may alter only one credential of a user. (Kafka: ScramControlManager; KIP-554.)
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from mpbroker.coordinator.metadata.image_sizes import NAME_BYTES_MAX
from mpbroker.ipc.calls import AlterScram, DescribeScram, ScramUser, ScramUsers
from mpbroker.ipc.credentials import ScramImage
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from mpbroker.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramType

Credentials: TypeAlias = dict[tuple[str, int], ScramCredential]
Alteration: TypeAlias = UserScramCredentialRecord | RemoveUserScramCredentialRecord
Refusal: TypeAlias = tuple[ErrorCode, str]

# These bounds are ours; Kafka has none. Here all credentials together have to fit into a bulletin.
SALT_BYTES_MAX = 1024
KEY_BYTES_MAX = 64
# Bytes of a credential without its name and salt.
CREDENTIAL_BYTES = 2 * KEY_BYTES_MAX + 32
CREDENTIALS_BYTES_MAX = 16 << 20
MECHANISMS = (ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512)


def credential_in(record: UserScramCredentialRecord) -> ScramCredential:
    return ScramCredential(record.iterations, record.salt, record.stored_key, record.server_key)


def alter(credentials: Credentials, call: AlterScram) -> tuple[ScramUsers, list[Alteration]]:
    """Return the answer, with one entry per user, and the records to write. Changes nothing."""
    refused: dict[str, Refusal] = {}
    accepted: set[str] = set()

    def judge(user: str, why: Refusal | None) -> None:
        """Accept an alteration of `user`, or refuse it with `why`. If a user has several, refuse all."""
        if user in accepted:
            accepted.remove(user)
            why = (
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        if why is not None:
            refused.setdefault(user, why)
        elif user not in refused:
            accepted.add(user)

    for user, mechanism in call.deletions:
        judge(user, _wrong_name(user, mechanism) or _missing(credentials, user, mechanism))
    for one in call.upsertions:
        wrong = _wrong_name(one.user, one.mechanism) or _wrong_iterations(one.iterations) or _too_long(one)
        judge(one.user, wrong)
    room = CREDENTIALS_BYTES_MAX - _bytes_of(credentials) if call.upsertions else 0
    for one in call.upsertions:
        if one.user not in refused:
            room -= len(one.user.encode()) + len(one.salt) + CREDENTIAL_BYTES
            if room < 0:
                text = "There are too many user credentials"
                refused[one.user] = (ErrorCode.POLICY_VIOLATION, text)
    records: list[Alteration] = [
        RemoveUserScramCredentialRecord(user, mechanism)
        for user, mechanism in call.deletions
        if user not in refused
    ]
    records += [_record(one) for one in call.upsertions if one.user not in refused]
    users = dict.fromkeys([*(user for user, _ in call.deletions), *(one.user for one in call.upsertions)])
    return ScramUsers([ScramUser(user, *refused.get(user, (0, None))) for user in users]), records


def _record(one: ScramImage) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        one.user, one.mechanism, one.salt, one.stored_key, one.server_key, one.iterations
    )


def _wrong_name(user: str, mechanism: int) -> Refusal | None:
    if not user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if mechanism not in MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    return None


def _wrong_iterations(iterations: int) -> Refusal | None:
    if iterations < ITERATIONS_MIN:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if iterations > ITERATIONS_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    return None


def _too_long(one: ScramImage) -> Refusal | None:
    if len(one.user.encode()) > NAME_BYTES_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username is too long"
    if len(one.salt) > SALT_BYTES_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt is too long"
    if max(len(one.stored_key), len(one.server_key)) > KEY_BYTES_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password is too long"
    return None


def _bytes_of(credentials: Credentials) -> int:
    return sum(
        len(user.encode()) + len(one.salt) + CREDENTIAL_BYTES for (user, _), one in credentials.items()
    )


def _missing(credentials: Credentials, user: str, mechanism: int) -> Refusal | None:
    if (user, mechanism) in credentials:
        return None
    return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"


def describe(credentials: Credentials, call: DescribeScram) -> ScramUsers:
    """Return the users' mechanisms and iterations. No other part of a credential leaves the broker."""
    known: dict[str, list[tuple[int, int]]] = {}
    for (user, mechanism), credential in sorted(credentials.items()):
        known.setdefault(user, []).append((mechanism, credential.iterations))
    if call.users is None:
        return ScramUsers([ScramUser(user, credentials=found) for user, found in known.items()])
    times = Counter(call.users)
    return ScramUsers([_described(user, count, known.get(user)) for user, count in times.items()])


def _described(user: str, times: int, found: list[tuple[int, int]] | None) -> ScramUser:
    if times > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return ScramUser(user, ErrorCode.DUPLICATE_RESOURCE, text)
    if found is None:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        return ScramUser(user, ErrorCode.RESOURCE_NOT_FOUND, text)
    return ScramUser(user, credentials=found)
