"""Random histories of a partition: all readers agree with the model, record by record, after each step."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

from tests.support.partition_walk import history, walker


def test_random_histories(tmp_path: Path) -> None:
    with walker(tmp_path) as made:
        for seed in range(int(os.environ.get("A", "0")), int(os.environ.get("B", "20"))):
            t = time.perf_counter()
            policy, steps = history(seed)
            why = ""
            try:
                made.walk(policy, steps)
            except Exception as e:
                why = f"{type(e).__name__} {str(e)[:300]}" + str(
                    [
                        (f.filename.split("/")[-1], f.lineno, f.line[:80])
                        for f in traceback.extract_tb(e.__traceback__)[-3:]
                    ]
                )
            print(seed, policy, f"{time.perf_counter() - t:.3f}", why)
