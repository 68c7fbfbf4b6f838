"""`UserError`: what the user wrote cannot be done as written. Shown as one line, with no traceback through our code."""

from __future__ import annotations


class UserError(Exception):
    """The base of errors about a selector, an option, a verb or a mesh's name."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this, and prints it in place of the traceback.
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]
