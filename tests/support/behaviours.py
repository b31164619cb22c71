"""Test modules that stand beside those of a product folder and are about more than one of its modules.

Every other one is named after the module that it tests, with or without what of it: `test_journal_ring.py`
and `test_journal_ring_damage.py` test `journal_ring`. A test of the project's habits keeps it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# By what they are about; a name is the path below tests/ without `test_`.
BEHAVIOURS: Mapping[str, Sequence[str]] = {
    "what dies, fails or fills up, and what is left of it": (
        *("handlers/damage", "handlers/exceptions", "handlers/fences"),
        *("handlers/full_arena", "log/failing_calls", "log/faults", "log/flips", "log/power_cut"),
        *("log/slow_disk", "log/append/killed_rounds", "log/compaction/uncleanable"),
        *("log/directories/inherited_journal", "log/recovery/failed_sync", "log/recovery/unsynced"),
        *("log/replica_move/meeting", "log/replica_move/moving_fails", "log/replica_move/moving_killed"),
        *("network/acceptor/churn", "security/deaths", "security/resizing", "shm/kills", "shm/wakeups"),
        *("shm/zeroed", "supervisor/full_disk", "supervisor/recovery", "supervisor/workers"),
        *("remote/power_cut", "remote/standby_walk"),
    ),
    "partitions whose log starts in an object store": (
        *("inspection/tiered", "log/recovery/tiered", "log/retention/tiered", "reading/tiered"),
    ),
    "whole brokers or processes, as clients and operators meet them": (
        *("client/secure_broker", "handlers/acknowledged_end", "handlers/parked"),
        "inspection/not_yours",
        *("inspection/progress", "inspection/verify", "metrics/known_load"),
        *("metrics/request_log", "exporter/with_broker", "metrics/with_broker", "network/real_broker"),
        *("network/acceptor/control_plane", "network/acceptor/listeners", "network/acceptor/reload"),
        *("network/acceptor/start", "quotas/broker", "reading/beside_a_broker", "reading/kafka_as_server"),
        *("reading/places", "security/added_listeners", "security/connections", "security/extremes"),
        *("cli/client_commands", "cli/page", "remote/tier/with_broker"),
        *("remote/restore/with_broker", "standby/with_brokers"),
        *("console/browser", "console/login", "console/with_broker"),
        *("security/attack_table", "security/attacks", "security/foreign_logins", "security/identities"),
        "security/quotas",
        *("security/admin_listeners", "security/reload", "security/secrets", "security/security_page"),
        *("supervisor/altered", "supervisor/reload", "supervisor/serve", "supervisor/upgrades"),
    ),
    "APIs of a kind, each of which is a module": (
        *("handlers/admin_apis", "handlers/alter_apis", "handlers/fetch", "handlers/forwarded_bytes"),
        *("handlers/group_apis", "handlers/log_apis", "handlers/long_lists", "handlers/scram_apis"),
        "handlers/token_apis",
        *("handlers/apis/client_telemetry", "handlers/transaction_apis", "quotas/apis"),
    ),
    "a rule that several modules keep together": (
        *("coordinator/groups/consumer/migration", "coordinator/histories", "coordinator/request_paths"),
        "handlers/busy_slots",
        "handlers/request_paths",
        *("handlers/deleted_files", "log/histories"),
        *(
            "handlers/bounds",
            "handlers/heavy",
            "handlers/request_memory",
            "log/append/altered_settings",
            "log/append/delayed_produce",
        ),
        *(
            "log/append/offered_rounds",
            "log/append/transactions",
            "log/append/writeback",
        ),
        *("handlers/produce/pipelined", "storage/files", "log/manager/several_workers"),
        *(
            "log/manager/recreated_topic",
            "log/partition/rolls",
            "quotas/throttling",
            "reading/killed_swaps",
            "reading/replaced_segments",
            "security/mechanisms",
        ),
        "supervisor/policies",
    ),
    "one of the many things that the processor's turn does": tuple(
        f"network/processor/{what}"
        for what in (
            *("fairness", "idle", "log_events", "network_time", "parked", "session", "slices"),
            *("throttle", "throttled_by", "tls_hostile", "tls_turn", "tls_window"),
        )
    ),
    "bytes from elsewhere: other implementations, examples, chance": (
        *("client/hostile_brokers", "handlers/oracles", "network/fuzz", "protocol/hostile_input"),
        *("network/hostile", "network/slow_readers", "security/hostile_tls", "security/tables"),
        *("protocol/kio_oracle", "protocol/schema", "records/fuzz", "records/golden", "records/oracles"),
        *("records/roundtrip", "security/fuzz"),
    ),
}
