"""The layouts that processes share: who talks to whom (`topology`), descriptors (`slots`), partition slots
(`table`), counters.
"""
