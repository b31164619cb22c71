"""Settings of the group coordinator and the transaction coordinator."""

from typing import Annotated

from mpbroker.config.consumer_groups import ConsumerProtocolSettings
from mpbroker.config.integers import INT_MAX
from mpbroker.config.keys import ConfigType, Key

BOOLEAN, INT, LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG


class CoordinatorSettings(ConsumerProtocolSettings, frozen=True, kw_only=True):
    """Settings of both coordinators. RemoteSettings derives from this class, and so from SecuritySettings."""

    group_initial_rebalance_delay_ms: Annotated[
        int,
        Key(
            INT,
            "Time for which the first rebalance of a group waits for more members.",
            begins="Consumer groups",
        ),
    ] = 3000
    group_min_session_timeout_ms: Annotated[
        int, Key(INT, "Shortest session timeout that a member may ask for.")
    ] = 6000
    group_max_session_timeout_ms: Annotated[
        int, Key(INT, "Longest session timeout that a member may ask for.")
    ] = 1_800_000
    group_max_size: Annotated[int, Key(INT, "Members that a group may have.", at_least=1)] = INT_MAX
    group_max_members_bytes: Annotated[
        int, Key(LONG, "Memory that the members of all groups may take: protocols, assignments.", at_least=1)
    ] = 268_435_456
    offset_metadata_max_bytes: Annotated[
        int, Key(INT, "Longest text that may be committed with an offset.")
    ] = 4096
    offsets_topic_num_partitions: Annotated[
        int, Key(INT, "Partitions of __consumer_offsets, when it is created.", at_least=1)
    ] = 50
    offsets_topic_segment_bytes: Annotated[
        int, Key(INT, "Size at which __consumer_offsets begins a new segment.", at_least=1_048_576)
    ] = 104_857_600
    offsets_retention_minutes: Annotated[
        int, Key(INT, "Time after which the offsets of an abandoned group expire.", at_least=1)
    ] = 10_080
    offsets_retention_check_interval_ms: Annotated[
        int, Key(LONG, "Time between two checks for expired offsets.", at_least=1)
    ] = 600_000

    transaction_max_timeout_ms: Annotated[
        int,
        Key(
            INT,
            "Longest timeout that a producer may ask for its transactions.",
            at_least=1,
            begins="Transactions",
        ),
    ] = 900_000
    transactional_id_expiration_ms: Annotated[
        int, Key(INT, "Time after which an unused transactional id is forgotten.", at_least=1)
    ] = 604_800_000
    transaction_state_log_num_partitions: Annotated[
        int, Key(INT, "Partitions of __transaction_state, when it is created.", at_least=1)
    ] = 50
    transaction_state_log_segment_bytes: Annotated[
        int, Key(INT, "Size at which __transaction_state begins a new segment.", at_least=1_048_576)
    ] = 104_857_600
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Annotated[
        int, Key(INT, "Time between two checks for transactions that are open for too long.", at_least=1)
    ] = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: Annotated[
        int, Key(INT, "Time between two checks for transactional ids that have expired.", at_least=1)
    ] = 3_600_000
    transaction_partition_verification_enable: Annotated[
        bool, Key(BOOLEAN, "Check that a partition is in the transaction of those who append to it.")
    ] = True
