"""NIXL, as `ways.nixl` uses it.

agent       the library itself: registering memory, meeting peers, requests        the one file that knows it
turns       the one thread that calls it
registered  what of this process's memory is registered, and for whom
peers       what handles carry for it, and what is known of the agents of others
moving      one transfer, from the first look at its lease to the last
"""
