"""The whole text of one rank's stream: in memory while small, then in an unnamed file that goes with its owner."""

from __future__ import annotations

import tempfile

MEMORY_BYTES = 256 << 10


class Spool:
    """Append text, read all of it. When the disk is full the rest is lost, and `note` says so."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  # closed with this object
        self.note = ""

    def write(self, text: str) -> None:
        if self.note:
            return
        try:
            self._file.write(text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            self.note = f"\n[meshbook: the rest could not be kept in {tempfile.gettempdir()}: {error.strerror}]\n"

    def read(self) -> str:
        """All that was written."""
        self._file.seek(0)
        data = self._file.read()
        self._file.seek(0, 2)
        return data.decode("utf-8", "surrogateescape") + self.note
