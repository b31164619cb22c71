"""Histories of a partition whose segments and cuts go to a bucket now and then, and how readers get them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mpbroker.ipc.table import Partition
from mpbroker.reading.catalogs import open_catalog
from tests.support.bucket_world import BucketWorld
from tests.support.forms import pick, rounds
from tests.support.partition_model import PartitionModel, pairs_of
from tests.support.partition_walk import Content, Disagreement, Walker, history, walker
from tests.support.reading_queries import UNCOMMITTED, bucket_query, planned
from tests.support.reading_rows import rows_of

COMMITTED = {"kafka.isolation.level": "read_committed"}
HISTORIES = pick("histories of a bucket", short=rounds(40), long=2000)


class InABucket(Content):
    """Brings the log to a bucket by chance, and compares what the bucket has. One for each history."""

    def __init__(self, seed: int, policy: str, root: Path) -> None:
        self._draw = random.Random(seed)
        self._is_tiered = policy == "delete"
        self._root = root
        self._world: BucketWorld | None = None
        self.read = 0

    def compare_elsewhere(self, log_dir: Path, published: Partition, model: PartitionModel) -> None:
        if self._world is None:
            self._world = BucketWorld(log_dir, self._root)
        world, is_first = self._world, not self._world.published
        is_fresh = is_first or not self._is_tiered or self._draw.random() < 0.5
        if self._is_tiered and self._draw.random() < 0.5:
            world.upload("t", published)
        world.publish("t", published)
        if is_fresh:
            world.cut()
        for isolation, stable, wanted in (
            (COMMITTED, model.stable(), model.committed),
            (UNCOMMITTED, model.end, model.records),
        ):
            options = {**isolation, "maxRecordsPerPartition": self._draw.choice((1, 3, 1000))}
            found = bucket_query(world.url, **options)
            with closing(open_catalog(found)) as catalog:
                end = catalog.bounds([("t", 0)])["t", 0].end
            if end > stable or (is_fresh and end != stable):
                raise Disagreement(f"the bucket may be read up to {end}, and by the model up to {stable}")
            rows = [(row["offset"], row["key"], row["value"]) for row in rows_of(planned(found), found)]
            rows = [row for row in rows if row[0] >= model.log_start]
            if rows != pairs_of(wanted(end)):
                raise Disagreement(
                    f"{options} in the bucket below {end}: {rows}, not {pairs_of(wanted(end))}"
                )
            self.read += len(rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    with walker(tmp_path_factory.mktemp("histories")) as found:
        yield found


def test_random_histories(made: Walker, tmp_path: Path) -> None:
    read = 0
    for seed in range(HISTORIES):
        root = tmp_path / str(seed)
        root.mkdir()
        policy, steps = history(seed, policies=("delete", "delete", "compact"))
        content = InABucket(seed, policy, root)
        made.walk(policy, steps, content)
        read += content.read
        shutil.rmtree(root)
    assert read > 20 * HISTORIES
