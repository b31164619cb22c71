"""`python -m mpbroker.cli` is the same as `mpbroker`."""

from mpbroker.cli.main import main

main()
