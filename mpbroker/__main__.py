"""`python -m mpbroker` is the `mpbroker` command."""

from mpbroker.cli.entry import main

if __name__ == "__main__":
    main()
