"""`mpbroker top`: a live view of one broker on this host, or of its directories while it is stopped.

`samples` says what a look at a broker finds; `live`, `at_rest` and `groups` take such looks, `watch` decides
which. `model` makes rows and rates of samples and does no I/O. `plain` prints them once, `app` shows them on
a terminal.
"""
