"""A log process on two directories, of which one fails: run by itself, with `native/fault.c` loaded.

    LD_PRELOAD=… python -m tests.support.fault_workload DIRECTORY PHASE KIND ERRNO

Each call of the kind (write, sync, read) that the phase makes below the second directory, or each
FAULT_STRIDEth, fails, it and all after it (FAULT_ONCE: it alone), in a process of its own; then the machine
is without faults again, and everything starts anew. Phases are produce, stop, recover and those of
`fault_serving`. FAULT_CALL=n: only that one, and what is left in DIRECTORY/n stays there.
Prints how many calls there were. Exits with 1, and says which call, where a promise is broken:

* what was acknowledged is there once, and nothing that was never sent;
* the other directory goes on as if nothing had happened;
* what fails is refused, and the directory or the file is named, in the log or in the message of the end.
"""

from __future__ import annotations

import ctypes
import errno
import io
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import msgspec

from mpbroker.ipc import calls
from mpbroker.ipc.process import FatalError
from mpbroker.records.batch import CRC_AT
from mpbroker.records.builder import build_batch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from mpbroker.storage import names
from mpbroker.storage.names import segment_name
from mpbroker.storage.segments import segments_of
from tests.support.fault_serving import CONFIGS, SERVING, Broken
from tests.support.log_node import Node, wait_for_io
from tests.support.log_rig import Rig
from tests.support.stepped_log import settle

PARTITIONS = 4
BATCHES = 5
SEGMENT_BYTES = 9_000
VALUE_BYTES = 2_000
KINDS = {"write": 1, "sync": 2, "read": 3}
TIMESTAMP_MS = 4_000_000_000_000
CALLS_MAX = 400

_native = ctypes.CDLL(None)


class Scenario:
    def __init__(self, directory: Path, public: Path, configs: dict[str, str]) -> None:
        self.public = public
        self.topic = calls.EnsureTopic("t", bytes(range(1, 17)), list(range(PARTITIONS)), configs, 5)
        self.rigs: list[Rig] = []
        self.node = Node(self.make_rig, directory, 2)
        self.said = io.StringIO()
        self.acked: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
        self.sent: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
        self.sequence = self.boots = 0
        # That were made until the faults ended.
        self.calls = -1
        logging.basicConfig(stream=self.said, level=logging.INFO, force=True)

    def make_rig(self, _: str, **options: object) -> Rig:
        while self.rigs:
            self.rigs.pop().close()
        self.boots += 1
        more: dict[str, object] = {"log_journal_bytes": 96 << 10, "log_journal_direct_bytes": 50_000}
        more |= {"log_scrub_max_bytes_per_second": 1 << 40, **options}
        self.rigs = [Rig(self.node.dirs[0], self.public / f"region{self.sequence}-{self.boots}", more)]
        return self.rigs[0]

    def start(self) -> None:
        self.node.boot()
        self.targets = self.node.open(self.topic)
        process = self.node.process
        wait_for_io(process)
        process.manager.journals.use()
        for target in self.targets:
            log = process.manager.logs.get(target.slot)
            if log is not None:
                log.apply_config(msgspec.structs.replace(log.config, segment_bytes=SEGMENT_BYTES))

    def in_second(self, partition: int) -> bool:
        return (self.node.dirs[1] / f"t-{partition}").is_dir()

    def produce(self) -> None:
        process = self.node.process
        for _ in range(BATCHES):
            named = {}
            for partition, target in enumerate(self.targets):
                self.sequence += 1
                key = self.sequence.to_bytes(8, "big")
                record = NewRecord(key=key, value=bytes(VALUE_BYTES), timestamp=TIMESTAMP_MS)
                data = bytes(build_batch([record], leader_epoch=0))
                crc = int.from_bytes(data[CRC_AT : CRC_AT + 4], "big")
                self.sent[partition].add(crc)
                named[self.node.rig.job([((target.slot, target.slot_generation, 5), data)])] = partition, crc
            settle(process)
            process.manager.open_partitions.ease()
            for reply in self.node.rig.replies():
                partition, crc = named.pop(reply.request)
                if reply.results[0].error == 0:
                    self.acked[partition].add(crc)
                elif not self.in_second(partition):
                    raise Broken(f"t-{partition} in the other directory refuses: {reply.results[0].error}")
            if named:
                raise Broken(f"{len(named)} produces were never answered")
        self.node.checkpoint()

    def works_again(self) -> None:
        if self.calls < 0:
            self.calls = _native.fault_count()
        arm(self.node.dirs[1], "read", 1 << 30, 0)

    def check(self) -> None:
        """After a start without faults."""
        for partition, target in enumerate(self.targets):
            if target.error:
                raise Broken(f"t-{partition} is not opened again: {target.message}")
            path = next(d / f"t-{partition}" for d in self.node.dirs if (d / f"t-{partition}").is_dir())
            found = [
                int.from_bytes(batch.bytes[CRC_AT : CRC_AT + 4], "big")
                for base in segments_of(path)
                for batch in iterate_batches((path / segment_name(base)).read_bytes())
            ]
            if len(found) != len(set(found)) or not set(found) <= self.sent[partition]:
                raise Broken(f"t-{partition} has a batch twice, or one that was never sent")
            if lost := self.acked[partition] - set(found):
                raise Broken(f"t-{partition} has lost {len(lost)} acknowledged batches")


def fill(directory: Path, public: Path, configs: dict[str, str]) -> Scenario:
    scenario = Scenario(directory, public, configs)
    scenario.start()
    if not any(map(scenario.in_second, range(PARTITIONS))) or all(map(scenario.in_second, range(PARTITIONS))):
        raise Broken("both directories are to have partitions")
    scenario.produce()
    return scenario


def arm(directory: Path, kind: str, number: int, error: int) -> None:
    _native.fault_arm(os.fsencode(directory), KINDS[kind], number, error)


def run(directory: Path, phase: str, kind: str, number: int, error: int) -> bool:
    """Run the workload; tell whether the call that is to fail was made."""
    once = "FAULT_ONCE" in os.environ
    which = -number if once else number
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
        scenario = fill(directory, Path(public), CONFIGS.get(phase, {}))
        second = scenario.node.dirs[1]
        end = ""
        if phase == "produce":
            arm(second, kind, which, error)
            scenario.produce()
        elif phase in SERVING:
            SERVING[phase](scenario, lambda: arm(second, kind, which, error))
        elif phase == "stop":
            arm(second, kind, which, error)
            scenario.node.stop()
            if not (scenario.node.dirs[0] / names.CLEAN_SHUTDOWN).exists():
                raise Broken("the other directory is not marked clean")
        else:
            scenario.node.crash()
            arm(second, kind, which, error)
            try:
                scenario.start()
                for partition, target in enumerate(scenario.targets):
                    if target.error and not scenario.in_second(partition):
                        raise Broken(f"t-{partition} in the other directory is not opened: {target.message}")
                settle(scenario.node.process)
            except FatalError as failure:
                end = str(failure)
        scenario.works_again()
        reached = scenario.calls >= number
        text = scenario.said.getvalue() + end
        is_told = os.strerror(error) in text or os.strerror(errno.EIO) in text
        # A reader tells who asked it; who cannot read an entry of an index can do without.
        must_tell = kind == "read" and phase != "read" and not once
        if reached and (end or must_tell) and not is_told:
            raise Broken(f"nothing says why: {text}")
        scenario.node.crash()
        scenario.start()
        scenario.check()
        scenario.produce()
        scenario.node.crash()
        for rig in scenario.rigs:
            rig.close()
    return reached


def main() -> int:
    directory, phase, kind, error = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    stride = int(os.environ.get("FAULT_STRIDE", "1"))
    only = int(os.environ.get("FAULT_CALL", "0"))
    for number in [only] if only else range(1, CALLS_MAX, stride):
        here = directory / str(number)
        here.mkdir()
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                random.seed(number)
                code = 0 if run(here, phase, kind, number, error) else 3
            except BaseException:  # noqa: BLE001 - the fork exits in any case
                traceback.print_exc()
                sys.stderr.write(f"with {kind} {number} failing\n")
            finally:
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not only:
            shutil.rmtree(here)
        if code == 3 or (only and code == 0):
            print(number - 1)
            return 0
        if code != 0:
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
