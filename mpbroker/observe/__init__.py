"""Watches a broker on this host: takes samples, and makes rates, percentiles and lags of them.

`live` takes samples of a running broker, `at_rest` takes samples of a stopped broker's directories. `model`
makes rows from samples, with `rates` and `lag`, and does no I/O. `committed_offsets` reads the commits of
groups from files, and `offset_follower` calls it in an event loop.
"""
