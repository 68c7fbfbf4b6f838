"""Traces and profiles of cells.

`collect` fetches spans of all processes and puts them on one clock. The last rank to join a collective is known, and so
are the ranks that waited for it. A profile comes from py-spy at each host agent (`runtime.hosts.profiler`); it ends on
request and with its worker. Where py-spy may not read a process, an actor samples its own (`runtime.cells.sampling`).
torch's profiler runs around the next cell through IPython's events (`runtime.cells.operators`). Both kinds of samples
are cut to user frames alike, and `profile` (pure) merges them.
"""
