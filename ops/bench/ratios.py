"""Records ratios of mpbroker to Apache Kafka, and compares newly measured ratios with the record.

Absolute numbers depend on the machine and on its other work at the time. Ratios depend less on both, if
the brokers take turns. A larger ratio is better in every row: where a smaller number is better, as for times,
the ratio is Kafka's number divided by mpbroker's.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

# A row that moved less than this between its rounds was lucky; one that moved more guards nothing.
NOISE_LEAST, NOISE_MOST = 0.08, 0.5
SLOWER_MOST = 2.0


class RatiosError(Exception):
    """The file of recorded ratios cannot be used; the message has reason and remedy."""


@dataclass(frozen=True)
class Recorded:
    """A row: the median of its rounds, and their spread as a fraction of the median.

    `device_us`: the time of a commit round on the bare disk; 0 for rows that wait for no commit round.
    """

    ratio: float
    noise: float
    rounds: int
    device_us: float = 0.0


@dataclass(frozen=True)
class Measured:
    """The measured ratios of a row, one for each round. `device_us` is as in `Recorded`."""

    ratios: Sequence[float]
    device_us: float = 0.0


class Verdict(enum.Enum):
    """The result of comparing a row with its record. MISSED and NOT_RECORDED are failures."""

    MISSED = "MISSED"
    NOT_RECORDED = "not recorded"
    HELD = "held"
    BETTER = "better: record it"


@dataclass(frozen=True)
class Compared:
    """A measured row compared with its record. A ratio below `bound` is MISSED."""

    row: str
    recorded: Recorded | None
    measured: float
    bound: float
    device_us: float
    verdict: Verdict

    @property
    def failed(self) -> bool:
        return self.verdict in (Verdict.MISSED, Verdict.NOT_RECORDED)


def recorded(measured: Measured) -> Recorded:
    """Return the record of a row's rounds. Raises ValueError without rounds."""
    if not measured.ratios:
        raise ValueError("a row without rounds cannot be recorded")
    ratio = median(measured.ratios)
    apart = (max(measured.ratios) - min(measured.ratios)) / ratio
    noise = min(max(apart, NOISE_LEAST), NOISE_MOST)
    return Recorded(round(ratio, 3), round(noise, 3), len(measured.ratios), round(measured.device_us, 1))


def bound(kept: Recorded, device_us: float) -> float:
    """Return the ratio below which a row is MISSED. A disk slower than recorded lowers it by up to half."""
    slower = min(max(device_us / kept.device_us, 1.0), SLOWER_MOST) if kept.device_us and device_us else 1.0
    return kept.ratio * (1 - kept.noise) / slower


def compare(kept: Mapping[str, Recorded], found: Mapping[str, Measured]) -> list[Compared]:
    """Compare each row of `found` with its record. Return the results in the order of `found`."""
    rows = []
    for name, measured in found.items():
        now, before = median(measured.ratios), kept.get(name)
        if before is None:
            rows.append(Compared(name, None, now, 0.0, measured.device_us, Verdict.NOT_RECORDED))
            continue
        least = bound(before, measured.device_us)
        verdict = Verdict.HELD
        if now < least:
            verdict = Verdict.MISSED
        elif now > before.ratio * (1 + before.noise):
            verdict = Verdict.BETTER
        rows.append(Compared(name, before, now, least, measured.device_us, verdict))
    return rows


def load(path: Path) -> dict[str, Recorded]:
    """Read the recorded rows. Raises RatiosError."""
    try:
        rows = json.loads(path.read_text())["rows"]
        return {name: Recorded(**row) for name, row in rows.items()}
    except FileNotFoundError as error:
        raise RatiosError(f"{path} is not there: record it with --record") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RatiosError(f"{path} is damaged ({error!r}): take it from git, or --record") from error


def save(path: Path, circumstances: str, rows: Mapping[str, Recorded]) -> None:
    """Write the rows, one a line, and where they were measured. Raises OSError."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(asdict(row))}" for name, row in rows.items())
    path.write_text(f'{{"circumstances": {json.dumps(circumstances)},\n "rows": {{\n{lines}\n }}}}\n')
