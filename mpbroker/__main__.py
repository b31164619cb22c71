"""`python -m mpbroker` is the `mpbroker` command."""

from mpbroker.cli.main import app

if __name__ == "__main__":
    app(prog_name="mpbroker")
