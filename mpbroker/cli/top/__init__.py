"""`mpbroker top`: a live view of one broker on this host, or of its directories while it is stopped.

`mpbroker.observe` looks at the broker and makes rows of what it finds. `watch` decides what to look at, and
`groups` asks for groups. `columns` says what of a row is shown: `plain` prints it once, `app` shows it on a
terminal.
"""
