"""Kills at random moments, and a model that knows what was promised: nothing that was answered is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mpbroker.ipc.calls import (
    AllocateProducerIds,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopics,
    DeleteTopics,
    Failed,
    Message,
    ProducerIds,
)
from tests.support.coordinator_tree import CoordinatorTree
from tests.support.forms import each

NAMES = ["a", "b", "c", "d.e", "f"]
ROUNDS = 25


class Promises:
    """What answers said. A name whose call was lost may have gone either way until somebody asks."""

    def __init__(self) -> None:
        self.exists: dict[str, bytes | None] = dict.fromkeys(NAMES)
        self.unsure: set[str] = set()
        self.first_free_id = 0

    def heard(self, call: Message, answer: Message) -> None:
        if isinstance(answer, ProducerIds):
            assert answer.first >= self.first_free_id, "a producer id was given out twice"
            self.first_free_id = answer.first + answer.count
        elif isinstance(answer, CreatedTopics):
            for topic in answer.topics:
                self._heard_create(topic.name, topic.error, topic.topic_id)
        elif isinstance(answer, DeletedTopics):
            for gone in answer.topics:
                assert gone.name is not None
                self._heard_delete(gone.name, gone.error)
        else:
            assert isinstance(answer, Failed)
            raise AssertionError(f"{call} was refused: {answer}")

    def _heard_create(self, name: str, error: int, topic_id: bytes) -> None:
        assert error in (0, 36)
        if name not in self.unsure:
            assert (error == 0) == (self.exists[name] is None)
        if error == 0:
            self.exists[name] = topic_id
            self.unsure.discard(name)

    def _heard_delete(self, name: str, error: int) -> None:
        assert error in (0, 3)
        if name not in self.unsure:
            assert (error == 0) == (self.exists[name] is not None)
        self.exists[name] = None
        self.unsure.discard(name)

    def lost(self, call: Message) -> None:
        if isinstance(call, CreateTopics):
            self.unsure |= {topic.name for topic in call.topics}
        elif isinstance(call, DeleteTopics):
            self.unsure |= set(call.names)


def some_call(rng: random.Random, busy: set[str]) -> Message:
    """About names that no other call under way is about: answers may come in any order."""
    free = [name for name in NAMES if name not in busy]
    if not free or rng.random() < 0.2:
        return AllocateProducerIds()
    name = rng.choice(free)
    if rng.random() < 0.5:
        return CreateTopics([CreateTopic(name, rng.randint(1, 3))])
    return DeleteTopics([name])


def names_of(call: Message) -> set[str]:
    if isinstance(call, CreateTopics):
        return {topic.name for topic in call.topics}
    return set(call.names) if isinstance(call, DeleteTopics) else set()


def check_bulletin(tree: CoordinatorTree, promises: Promises) -> None:
    """Every handler sees what was promised, and soon in the slots of the log process of the moment."""
    tree.pump()
    for fake in tree.handlers:
        for name, topic_id in promises.exists.items():
            if name not in promises.unsure:
                assert (fake.topics[name].topic_id if name in fake.topics else None) == topic_id, name
    tree.until(lambda: all(slots_are_current(tree, fake) for fake in tree.handlers))


def slots_are_current(tree: CoordinatorTree, fake: Any) -> bool:
    return all(
        partition.slot_generation == tree.log.incarnation
        and tree.log.slots.get((topic.topic_id, partition.partition)) == partition.slot
        for topic in fake.topics.values()
        for partition in topic.partitions.values()
    )


def answers_to(
    tree: CoordinatorTree, under_way: dict[tuple[int, int], Message]
) -> list[tuple[Message, Message]]:
    """(call, answer) of what is answered by now."""
    return [
        (call, tree.handlers[number].answers[request])
        for (number, request), call in under_way.items()
        if request in tree.handlers[number].answers
    ]


def make_calls(tree: CoordinatorTree, rng: random.Random) -> dict[tuple[int, int], Message]:
    """(handler, request) -> call"""
    under_way: dict[tuple[int, int], Message] = {}
    busy: set[str] = set()
    for number in [rng.randrange(2) for _ in range(rng.randint(1, 6))]:
        call = some_call(rng, busy)
        busy |= names_of(call)
        under_way[number, tree.handlers[number].call(call)] = call
    return under_way


def let_run(tree: CoordinatorTree, rng: random.Random, under_way: dict[tuple[int, int], Message]) -> None:
    """To the end, or to a kill of the coordinator, and maybe the log process, at a random moment."""
    if rng.random() < 0.3:
        tree.log.dies_at = rng.choice(["taken", "written", "published", "ensuring", "removing"])
    if rng.random() < 0.4:
        tree.until(lambda: len(answers_to(tree, under_way)) == len(under_way))
        return
    enough = rng.randint(0, len(under_way))
    spins = iter(range(rng.randint(1, 400)))
    tree.until(lambda: len(answers_to(tree, under_way)) >= enough or next(spins, None) is None)
    tree.kill()
    tree.log.dies_at = None
    if rng.random() < 0.3:
        tree.replace_log_unseen()


@each("seed", short=range(6), long=range(100))
def test_kills_at_random_moments(make_tree: Callable[..., CoordinatorTree], seed: int) -> None:
    rng = random.Random(seed)
    tree = make_tree(slots=256)
    promises = Promises()
    tree.start()
    for _ in range(ROUNDS):
        under_way = make_calls(tree, rng)
        let_run(tree, rng, under_way)
        heard = answers_to(tree, under_way)
        for call in under_way.values():
            if not any(call is answered for answered, _ in heard):
                promises.lost(call)
        # Blocks of ids were given in the order of their numbers, whoever heard of them first.
        for call, answer in sorted(heard, key=lambda pair: getattr(pair[1], "first", -1)):
            promises.heard(call, answer)
        if not tree.pid:
            tree.serve()
        check_bulletin(tree, promises)
    assert tree.stop() == 0
