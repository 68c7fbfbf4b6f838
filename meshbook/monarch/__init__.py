"""Run programs written for PyTorch Monarch on meshbook, with their own `import monarch` lines.

path           the folder of our package `monarch`, and how processes find it
__main__       `python -m meshbook.monarch script.py`
alias/         that package: the names of each of Monarch's modules, imported from where meshbook defines them
modules        the errors that its modules raise for missing names
configuration  `monarch.config` over meshbook's settings; `keys` has the keys
identities     `ProcId` and `Uid`; `telemetry` has functions of `monarch.actor`
functions      other functions of Monarch's modules, also those that Monarch itself no longer offers
jobs           sources of hosts that outlive a program; `workers` has worker loops, `commands` runs programs on hosts
tensors        `monarch` itself, whose names of the tensor engine are imported at their first use

`alias/` holds the package named `monarch`. At the top of a checkout, a folder `monarch` would answer `import monarch`
by accident. `install()` puts `alias/` at the front of the import path, which workers inherit, and of PYTHONPATH,
which all other processes inherit. A name of Monarch's that is missing raises an error that says so (`modules`).
"""

from meshbook.monarch.path import install

__all__ = ["install"]
