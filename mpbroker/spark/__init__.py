"""What a PySpark program uses of mpbroker: a session that finds the source, and functions on columns.

Importing this imports neither PySpark nor PyArrow; what needs them does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_integration.doctor import examine, java_check, spark_check
    from spark_integration.environment import SparkSetupError
    from spark_integration.session import configure, session

__all__ = ["SparkSetupError", "configure", "examine", "java_check", "session", "spark_check"]

_MODULES = {
    "SparkSetupError": "spark_integration.environment",
    "examine": "spark_integration.doctor",
    "java_check": "spark_integration.doctor",
    "spark_check": "spark_integration.doctor",
    "configure": "spark_integration.session",
    "session": "spark_integration.session",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
