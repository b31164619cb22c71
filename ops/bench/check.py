"""`make bench-check`: fails if a ratio of mpbroker to Apache Kafka is worse than the recorded ratio.

    python -m ops.bench.check                  # the rows in their short form, about eight minutes
    python -m ops.bench.check --only 'produce-100B.*durable'
    python -m ops.bench.check --record         # write ops/bench/ratios.json again, on a quiet machine

Each row is measured on the brokers in turns, Kafka among them, and its ratio is compared with the recorded
ratio (ops/bench/ratios.py). A row below its bound is measured again, longer, before it counts as missed. For
rows whose commit rounds wait for the disk, the run also measures the bare disk (ops/bench/device.py): a
slower disk lowers the bound of these rows.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ops.bench import clients, device, ratios, run, scenarios
from ops.bench.brokers import BrokerError, Mpbroker
from ops.bench.hops import Hops
from ops.bench.ratios import Compared, Measured, RatiosError, Verdict
from ops.bench.run import Contender
from ops.bench.scenarios import LoadError, Scenario
from ops.setup.maven import MissingToolError

RATIOS = Path(__file__).with_name("ratios.json")
LOADS = (
    *("produce-100B-1", "produce-100B-8", "produce-100B-64", "produce-100B-256"),
    *("produce-16KiB-8", "fetch-1MiB-8", "connect-8"),
)
LOAD_S = 1.5
CLIENTS_SCALE = 0.1
ROUNDS, RECORD_ROUNDS = 3, 5
DURABLE = "durable"
POLICIES = (DURABLE, "os")
RATE, CPU = "rate", "CPU"
WIDTH = 130

# By quantity, then by contender: the figures of its rounds, more being better.
Figures = Mapping[str, Mapping[str, list[float]]]
Measure = Callable[["Session", int], Figures]


class Guarded(NamedTuple):
    """A measurement of some quantities. `waits_for_disk`: a slow disk worsens the first quantity."""

    name: str
    quantities: Sequence[str]
    waits_for_disk: bool
    measure_rounds: Measure

    def rows(self) -> list[str]:
        return [f"{self.name}, {policy}, {what}" for what in self.quantities for policy in POLICIES]


@dataclass
class Session:
    """The brokers (Kafka last), the ratios measured so far, and the measured times of the bare disk."""

    brokers: Sequence[Contender]
    directory: Path
    ratios: dict[str, list[float]] = field(default_factory=dict)
    device_us: dict[str, float] = field(default_factory=dict)

    def measured(self, wanted: re.Pattern[str]) -> dict[str, Measured]:
        return {
            row: Measured(found, self.device_us.get(row, 0.0))
            for row, found in self.ratios.items()
            if wanted.search(row)
        }

    def measure(self, guarded: Guarded, rounds: int) -> None:
        """Measure `guarded` for some rounds; add its ratios, and the bare disk's time, to the session."""
        durable = next(contender for contender in self.brokers if contender.title.endswith(DURABLE))
        assert isinstance(durable.broker, Mpbroker)
        hops = Hops(durable.broker)
        before = hops.sample()["log worker"]
        figures = guarded.measure_rounds(self, rounds)
        work = hops.sample()["log worker"] - before
        for what, by_broker in figures.items():
            kafka = by_broker[self.brokers[-1].title]
            for contender in self.brokers[:-1]:
                row = f"{guarded.name}, {contender.title.split()[-1]}, {what}"
                pairs = zip(by_broker[contender.title], kafka, strict=True)
                self.ratios.setdefault(row, []).extend(ours / theirs for ours, theirs in pairs)
        if guarded.waits_for_disk and work.rounds:
            bare = device.compared(self.directory, work.rounds, work.bytes, work.sync_ns)
            run.progress.print(f"[dim]{guarded.name}, {DURABLE}: {bare}")
            self.device_us[f"{guarded.name}, {DURABLE}, {guarded.quantities[0]}"] = bare.device.p50_us


def guarded_load(scenario: Scenario) -> Guarded:
    """Return the measurement of a load: its rate, and its requests per microsecond of the broker's CPU."""

    def measure(session: Session, rounds: int) -> Figures:
        for contender in session.brokers:
            contender.rounds.pop(scenario.name, None)
        run.measure(scenario, session.brokers, session.directory, LOAD_S, rounds)
        by_broker = {contender.title: contender.rounds[scenario.name] for contender in session.brokers}
        return {
            RATE: {title: [one.requests_per_s for one in results] for title, results in by_broker.items()},
            CPU: {title: [1 / one.broker_cpu_us for one in results] for title, results in by_broker.items()},
        }

    return Guarded(scenario.name, (RATE, CPU), scenario.kind == "produce", measure)


def guarded_client(row: clients.Row) -> Guarded:

    def measure(session: Session, rounds: int) -> Figures:
        found = run.in_turns(session.brokers, rounds, row.name, partial(row.at_scale, CLIENTS_SCALE))
        if not row.more_is_better:
            found = {title: [1 / figure for figure in figures] for title, figures in found.items()}
        return {row.unit: found}

    return Guarded(row.name, (row.unit,), True, measure)


def all_guarded() -> list[Guarded]:
    loads = [guarded_load(scenario) for scenario in scenarios.SCENARIOS if scenario.name in LOADS]
    return loads + [guarded_client(row) for row in clients.ROWS]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help=f"write the measured rows to {RATIOS.name}")
    parser.add_argument("--only", default="", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument("--rounds", type=int, help=f"of each row ({ROUNDS}; {RECORD_ROUNDS} to record)")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    chosen = parser.parse_args()
    chosen.rounds = chosen.rounds or (RECORD_ROUNDS if chosen.record else ROUNDS)
    return chosen


@contextlib.contextmanager
def started(parent: Path | None) -> Iterator[Session]:
    """Start the brokers, warm them up, and create the stock clients' topic; kill the brokers afterwards."""
    with run.started(parent, topic=clients.TOPIC) as (brokers, directory):
        yield Session(brokers, directory)


def circumstances(directory: Path, rounds: int) -> str:
    return (
        f"{run.circumstances(directory)}; {rounds} rounds of {LOAD_S:g} s, "
        f"stock clients with {CLIENTS_SCALE:g} of their records"
    )


def table(rows: Sequence[Compared]) -> Table:
    out = Table(title="mpbroker : Kafka, more is better", title_justify="left")
    out.add_column("row")
    for heading in ("recorded", "noise", "measured", "bound", "device µs (recorded)"):
        out.add_column(heading, justify="right")
    out.add_column("verdict")
    for row in rows:
        recorded = row.recorded
        disk = f"{row.device_us:,.0f} ({recorded.device_us:,.0f})" if row.device_us and recorded else ""
        cells = (f"{recorded.ratio:.2f}", f"{recorded.noise:.2f}") if recorded else ("", "")
        out.add_row(
            *(row.row, *cells, f"{row.measured:.2f}", f"{row.bound:.2f}", disk, row.verdict.value),
            style="bold red" if row.failed else "",
        )
    return out


def check(chosen: argparse.Namespace) -> list[Compared]:
    """Measure the rows, and measure once more those below their bounds; return the comparisons."""
    wanted, recorded = re.compile(chosen.only), ratios.load(RATIOS)
    chosen_rows = [guarded for guarded in all_guarded() if any(map(wanted.search, guarded.rows()))]
    with started(chosen.directory) as session:
        for guarded in chosen_rows:
            session.measure(guarded, chosen.rounds)
            compared = ratios.compare(recorded, session.measured(wanted))
            missed = {row.row for row in compared if row.verdict is Verdict.MISSED}
            if missed & set(guarded.rows()):
                session.measure(guarded, RECORD_ROUNDS)
        return ratios.compare(recorded, session.measured(wanted))


def record(chosen: argparse.Namespace) -> None:
    """Measure, and write the ratios to the file row by row. Rows that --only leaves out stay as they were."""
    wanted = re.compile(chosen.only)
    known = [row for guarded in all_guarded() for row in guarded.rows()]
    recorded = ratios.load(RATIOS) if RATIOS.exists() else {}
    with started(chosen.directory) as session:
        for guarded in all_guarded():
            if not any(map(wanted.search, guarded.rows())):
                continue
            session.measure(guarded, chosen.rounds)
            measured = session.measured(wanted)
            recorded |= {row: ratios.recorded(rounds) for row, rounds in measured.items()}
            rows = {row: recorded[row] for row in known if row in recorded}
            ratios.save(RATIOS, circumstances(session.directory, chosen.rounds), rows)


def main() -> int:
    chosen = arguments()
    try:
        if chosen.record:
            record(chosen)
            return 0
        rows = check(chosen)
    except (BrokerError, LoadError, MissingToolError, RatiosError, clients.BenchError, OSError) as error:
        print(f"bench-check: {error}", file=sys.stderr)
        return 2
    if not rows:
        print(f"bench-check: no row matches {chosen.only!r}", file=sys.stderr)
        return 2
    Console(width=max(Console().width, WIDTH)).print(table(rows))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
