"""Runs a broker, a producer of orders, and a declarative Spark pipeline that reads them: `make pipeline`.

All files are in one directory, and the next call continues there, with more orders. `--kill` ends a run by
SIGKILL in the middle, and another run finishes its work.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ops.bench.brokers import Mpbroker
from ops.demo.pipeline.orders import Pipeline, PipelineFailed, check, produce, results


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pipeline ARGS=…", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(__file__).parent / "state")
    parser.add_argument("--orders", type=int, default=1000, help="how many to add")
    parser.add_argument("--kill", action="store_true", help="kill a run, and go on")
    chosen = parser.parse_args()
    directory = chosen.directory.absolute()
    broker = Mpbroker(directory / "broker")
    broker.start()
    try:
        say(f"A broker on {broker.bootstrap}, its log in {broker.log_dir}")
        total = produce(broker.bootstrap, chosen.orders)
        say(f"{chosen.orders:,} more events in topic orders, now {total:,}; every tenth is not an order")
        pipeline = Pipeline(directory, broker.bootstrap)
        if chosen.kill:
            say("spark-pipelines run, to be killed as soon as it has written orders")
            pipeline.run_and_kill()
            say("spark-pipelines was killed in the middle of its run")
        say("spark-pipelines run (Spark takes half a minute to start)")
        pipeline.run(say)
        say("The tables and the topic are checked")
        found = results(directory, broker.bootstrap)
        check(found, total)
        for customer, orders, amount in [("customer", "orders", "amount"), *found.totals]:
            print(f"  {customer:<10}{orders:>8}{amount:>12}")
        print(f"{len(found.cleaned):,} orders in {directory}/warehouse/cleaned, each once")
        print(f"{len(found.large):,} in topic large-orders, each once")
    except PipelineFailed as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 1
    finally:
        broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
