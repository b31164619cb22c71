"""The environment variables of mpbroker and their descriptions, which `mpbroker man` prints."""

from typing import Final

BOOTSTRAP_SERVER: Final = "MPBROKER_BOOTSTRAP_SERVER"
RUNTIME_DIR: Final = "MPBROKER_RUNTIME_DIR"
LOG_LEVEL: Final = "MPBROKER_LOG_LEVEL"
LOG_FORMAT: Final = "MPBROKER_LOG_FORMAT"
SCHEMA_REGISTRY: Final = "MPBROKER_SCHEMA_REGISTRY"
SCHEMA_REGISTRY_CONFIG: Final = "MPBROKER_SCHEMA_REGISTRY_CONFIG"
# The address of a broker that nothing names, where ./data is not a log directory.
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

VARIABLES: Final = {
    BOOTSTRAP_SERVER: "The broker, for commands with --bootstrap-server but doctor: HOST:PORT or "
    "unix:/path. ctl, top and log scrub find it on this host.",
    SCHEMA_REGISTRY: "The schema registry, for consume and produce without --schema-registry; it may "
    "contain user and password.",
    SCHEMA_REGISTRY_CONFIG: "A file with settings of its client, where there is no --registry-config.",
    RUNTIME_DIR: "The directory of a broker's control socket: where serve makes it, and where ctl and "
    "log scrub find it.",
    LOG_LEVEL: "What a broker logs: DEBUG, INFO, WARNING or ERROR.",
    LOG_FORMAT: "Lines of a broker's log, for serve without --log-format: text or json.",
}
