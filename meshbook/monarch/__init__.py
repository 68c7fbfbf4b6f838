"""Programs written for PyTorch Monarch, with their own `import monarch` lines, on meshbook.

path           where the package `monarch` lies that answers for Monarch's, and how processes come to find it
__main__       `python -m meshbook.monarch script.py`
alias/         that package: the names of each of Monarch's modules, taken from where meshbook defines them
modules        what its modules say of names that are not here
configuration  `monarch.config` over meshbook's settings; `keys`, `durations`, `parametrizing` belong to it
identities     `ProcId` and `Uid`; `telemetry`, `debugging` and `hosting` have other functions of `monarch.actor`
older          what Monarch itself no longer offers, and old programs still use

`alias/` holds the package named `monarch`. At the top of a checkout, a folder `monarch` would answer `import monarch`
by accident. `install()` puts `alias/` at the front of the import path, which workers inherit, and of PYTHONPATH,
which all other processes inherit. A name of Monarch's that is missing raises an error that says so (`modules`).
"""

from meshbook.monarch.path import install

__all__ = ["install"]
