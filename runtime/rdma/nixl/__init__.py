"""The parts of the NIXL backend (`backends.nixl`).

agent         the NIXL library: registration, peers, requests; the only file that uses it
scheduler     the one thread that calls it
registration  which memory of this process is registered, and for whom
transfer      one transfer, from the first check of its lease to the last; NIXL's part of handles, and known peers
"""
