"""Watching a broker of this host: what a look at it finds, and rates, percentiles and lags made of looks.

`samples` says what a look finds. `live` looks at a broker that runs, `at_rest` at the directories of one that
does not. `model` makes rows of samples, with `rates` and `lag`, and does no I/O. `committed_offsets` reads
from the files what groups have committed, and `offset_follower` does so beside an event loop.
"""
