"""The API for PySpark programs: a session that finds the source, and functions on columns.

Importing this imports neither PySpark nor PyArrow; the functions do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_integration.doctor import examine, java_check, spark_check
    from spark_integration.environment import SparkSetupError
    from spark_integration.session import configure, session

__all__ = ["SparkSetupError", "configure", "examine", "java_check", "session", "spark_check"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"SparkSetupError": "environment", "configure": "session", "session": "session"}
    return getattr(import_module(f"spark_integration.{homes.get(name, 'doctor')}"), name)
