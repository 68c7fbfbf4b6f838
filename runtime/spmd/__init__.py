"""SPMD programs: scripts as torchrun starts them, one rank per actor. Independent of hosts.

`python -m meshbook.spmd` is a controller without a notebook: its own session, a mesh, and an `SPMDActor` on each main
thread, whose `run_script` runs the script as that process's `__main__`. All events (a reply, the end of a process,
Ctrl-C, a closed pipe) enter one queue, and `run_policy` decides on them, without a clock or a process.

A rank whose script succeeded leaves at once, so that its connections close as under torchrun. Rank 0 leaves last, as it
has the store. A failed rank stays for half a second, so that its end does not fail the others. Then the others get
SIGTERM and, 30 s later, SIGKILL.
"""
