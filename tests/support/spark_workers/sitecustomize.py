"""Takes PySpark of Spark's Python processes from its package, where that is installed, as bytecode.

Spark puts the same modules as a zip of sources in front of their path (PythonUtils.sparkPythonPath). Each of
hundreds of processes would compile them anew, which takes twice as long as all else that they do at start.

A daemon imports what each of its workers would import anew, but for PyArrow, which starts threads.
"""

import importlib
import sys
from pathlib import Path

_without = [path for path in sys.path if not path.endswith(("/pyspark.zip", "-src.zip"))]
if any(Path(path, "pyspark", "__init__.py").exists() for path in _without):
    sys.path[:] = _without
    if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].endswith(".daemon"):
        for _name in ("pyspark.worker", "spark_integration.source", "spark_integration.sink"):
            importlib.import_module(_name)
