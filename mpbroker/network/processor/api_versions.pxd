"""Answers ApiVersions, the first request of every connection, without a handler.

Python prepares the answer for each version. A handler answers if the request has another version or is
malformed, if any client has a quota on request time, or if the request log is on.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef enum:
    API_VERSIONS_MOST = 8       # versions of ApiVersions, from 0 on

cdef struct PreparedAnswers:
    # by version: bodies of the answers to ApiVersions; NULL: none is prepared
    const uint8_t *api_versions[API_VERSIONS_MOST]
    uint32_t api_versions_bytes[API_VERSIONS_MOST]
    uint64_t *request_log       # the level of the request log; 0: as it was at the start, off

cdef bint answer_api_versions(PreparedAnswers *prepared, ChannelTurn *t, Channel *c) noexcept nogil
