"""The verbs of the command `meshbook`: `command_line` has their parser, the other modules what they do.

Modules import what is heavy only where a verb needs it, so that `meshbook --help` takes no time.
"""

from __future__ import annotations

import sys


def print_note(text: str) -> None:
    """Print a text to stderr with the command's prefix, apart from the output of ranks."""
    for line in text.splitlines():
        print(f"meshbook: {line}", file=sys.stderr, flush=True)
