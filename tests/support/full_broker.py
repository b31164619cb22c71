"""The broker with little room for answers, and processors that soon lose patience with who does not read
them. Run with `-m`, as mpbroker.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from mpbroker.cli.entry import main
from mpbroker.network.processor import processor
from mpbroker.startup import buffers

REPLY_BYTES = 4 << 20

if __name__ == "__main__":
    sizes = buffers.sizes
    buffers.sizes = lambda config: dataclasses.replace(sizes(config), reply_limit_bytes=REPLY_BYTES)
    processor.ProcessorTurn = partial(processor.ProcessorTurn, stall_ns=1_000_000_000)  # type: ignore[misc, assignment]
    main()
