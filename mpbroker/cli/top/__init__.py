"""`mpbroker top`: a live view of one broker on this host, or of its directories while it is stopped.

`mpbroker.observe` takes samples of the broker and makes rows of them. `watch` finds the broker and asks it
for its groups. `columns` lists the columns of each view; `plain` prints the views once, `app` shows them on
a terminal.
"""
