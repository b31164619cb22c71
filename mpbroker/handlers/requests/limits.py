"""Limits of one request: how many elements it may have, and how many are processed without a pause."""

from __future__ import annotations

# Elements that the arrays of one request may have in all, its tagged fields included. They are counted before
# the request is decoded. Requests about topics and partitions: all that a broker has, each partition with its
# topic.
PARTITIONS_MAX = 40_000
# Requests about topics alone.
TOPICS_MAX = 20_000
# Requests about groups or transactional ids: an administrator's client asks for all of them at once.
GROUP_IDS_MAX = 50_000
# Requests by which administrators change much at once, and those that describe users.
# (Kafka: QuorumController.MAX_RECORDS_PER_USER_OP)
CHANGES_MAX = 10_000
# Requests about the members of one group.
MEMBERS_MAX = 10_000
# Requests without a long list.
SMALL_REQUEST_ELEMENTS_MAX = 1_000
# The elements of shorter bodies are not counted: each takes at least a byte, so they cannot be too many.
UNCOUNTED_BODY_BYTES = 1_000
# Bytes of its body that a request keeps while it waits.
KEPT_BYTES = 4_096
# A request with more elements is decoded in pieces, between other work.
DECODED_AT_ONCE = 2_000
# Elements of a response that are encoded at once.
ENCODED_AT_ONCE = 2_000
# The most bytes of one response, without the records that a processor sends from files.
RESPONSE_BYTES_MAX = 32 << 20

# Items that may need a disk read, or have a long answer, done before the handler does its other work.
SEARCHES_PER_PIECE = 32
# Items that need a few dictionary accesses each: some milliseconds.
LOOKUPS_PER_PIECE = 1_000
