"""Takes answers from the rings and hands requests to handlers."""
from mpbroker.network.processor.api_versions cimport PreparedAnswers
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef void take_all_answers(ChannelTurn *t) noexcept nogil
cdef void dispatch(ChannelTurn *t, PreparedAnswers *prepared) noexcept nogil
cdef void publish(ChannelTurn *t) noexcept nogil
