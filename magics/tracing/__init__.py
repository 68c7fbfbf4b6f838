"""Traces and profiles of cells.

`collect` fetches the spans of all processes and converts them to one clock. From these follow the last rank to join a
collective, and the ranks that waited for it. A profile comes from py-spy at each host agent (`runtime.hosts.profiler`);
it ends on request and with its worker. If py-spy may not read a process, an actor samples its own process
(`runtime.cells.sampling`). torch's profiler runs around the next cell through IPython's events
(`runtime.cells.operators`). Both kinds of samples are reduced to user frames in the same way, and `profile` (pure)
merges them.
"""
