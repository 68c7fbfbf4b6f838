"""`UserError`: an error in what the user wrote. Shown as one line, without a traceback through our code."""

from __future__ import annotations


class UserError(Exception):
    """The base of errors about a selector, an option, a verb or a mesh's name."""

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines in place of the traceback.
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]
