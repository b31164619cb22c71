"""Watching a broker of this host: samples, and rates, percentiles and lags made of them.

`live` takes samples of a broker that runs, `at_rest` of the directories of one that does not. `model` makes
rows of samples, with `rates` and `lag`, and does no I/O. `committed_offsets` reads the commits of groups from
the files, `offset_follower` does so in an event loop.
"""
