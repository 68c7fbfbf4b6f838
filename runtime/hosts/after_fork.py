"""State that a forked process copies and a fresh process would make for itself: seeds, keys, cached settings.

Nothing is needed for `random`, OpenSSL, `uuid` and the names that `tempfile` makes: these detect a fork. CUDA's
generators are made at the first use of CUDA, which never happens in a fork server.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time


def renew_process_state() -> None:
    """Seed the generators of this new child, and drop state derived from another environment or process.

    Known limit: a private generator of a preloaded module is the same in all children.
    """
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    # Both were read from the environment of the server.
    tempfile.tempdir = None
    time.tzset()
