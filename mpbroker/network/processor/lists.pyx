from mpbroker.network.processor.channel cimport ChannelState

# By state: the states that may follow it, and the lists that a channel may enter in it.
TABLE = {
    # Serving a list that still has a freed place frees the place again. Python may defer a channel that was
    # closed meanwhile: its place stays until the close is reported.
    ChannelState.CHANNEL_FREE: (
        (ChannelState.CHANNEL_FREE, ChannelState.CHANNEL_READING),
        (ChannelList.LIST_DEFERRED,),
    ),
    ChannelState.CHANNEL_READING: (
        (
            ChannelState.CHANNEL_READING, ChannelState.CHANNEL_WAITING, ChannelState.CHANNEL_THROTTLED,
            ChannelState.CHANNEL_CLOSED, ChannelState.CHANNEL_FREE,
        ),
        (
            ChannelList.LIST_HELD, ChannelList.LIST_STARVED, ChannelList.LIST_DEFERRED,
            ChannelList.LIST_MARKED, ChannelList.LIST_CLOSED,
        ),
    ),
    ChannelState.CHANNEL_WAITING: (
        (
            ChannelState.CHANNEL_READING, ChannelState.CHANNEL_SENDING, ChannelState.CHANNEL_OPENING,
            ChannelState.CHANNEL_CLOSED,
        ),
        (ChannelList.LIST_CLOSED,),
    ),
    ChannelState.CHANNEL_SENDING: (
        (ChannelState.CHANNEL_READING, ChannelState.CHANNEL_FREE),
        (ChannelList.LIST_DEFERRED, ChannelList.LIST_MARKED, ChannelList.LIST_CLOSED),
    ),
    ChannelState.CHANNEL_OPENING: (
        (
            ChannelState.CHANNEL_OPENING, ChannelState.CHANNEL_SENDING, ChannelState.CHANNEL_WAITING,
            ChannelState.CHANNEL_FREE,
        ),
        (ChannelList.LIST_OPENING, ChannelList.LIST_CLOSED),
    ),
    ChannelState.CHANNEL_THROTTLED: (
        (ChannelState.CHANNEL_READING, ChannelState.CHANNEL_CLOSED, ChannelState.CHANNEL_FREE),
        (ChannelList.LIST_DEFERRED, ChannelList.LIST_MARKED, ChannelList.LIST_CLOSED),
    ),
    # A list that it was in before may pass it to Python's.
    ChannelState.CHANNEL_CLOSED: (
        (ChannelState.CHANNEL_FREE,),
        (ChannelList.LIST_DEFERRED, ChannelList.LIST_MARKED),
    ),
}  # type: dict[ChannelState, tuple[tuple[ChannelState, ...], tuple[ChannelList, ...]]]


cdef set noted_moves(Lists *l):
    """Return (state, following state) of each change of state that has occurred."""
    return {
        (state, following)
        for state in range(CHANNEL_STATES) for following in range(CHANNEL_STATES)
        if l.moves[state] >> following & 1
    }

cdef set noted_entries(Lists *l):
    """Return (state, list) for each list that any channel has entered while it was in `state`."""
    return {
        (state, which)
        for state in range(CHANNEL_STATES) for which in range(CHANNEL_STATES)
        if l.entries[state] >> which & 1
    }
