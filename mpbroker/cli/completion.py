"""`mpbroker completion`: the script that completes commands, flags and names in a shell.

The script calls mpbroker with an environment variable set, and reads the possible words from its output. That
call imports only the modules of the command that is typed.
"""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from mpbroker.cli.errors import USAGE_ERROR, CliError

PROGRAM = "mpbroker"
VARIABLE = "_MPBROKER_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", hidden=True)]) -> None:
    """Print the script that completes this command in a shell.

    bash: source <(mpbroker completion bash). zsh: mpbroker completion zsh > a file _mpbroker in $fpath.
    fish: mpbroker completion fish > ~/.config/fish/completions/mpbroker.fish
    """
    if shell not in SHELLS:
        raise CliError(f"completion is for {', '.join(SHELLS)}, not '{shell}'", USAGE_ERROR)
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def typed_words() -> list[str]:
    """Enable Typer's completion, and return the words typed so far after the program's name."""
    completion_init()
    text = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        return shlex.split(text)[1:]
    except ValueError:
        # A quotation is not closed yet; the words before it choose the part.
        return text.split()[1:]
