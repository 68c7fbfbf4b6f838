"""Memory as the system sees it: addresses, other processes, segments. Knows no node, no message and no torch by import.

local       what a user gave us (tensor, array, memoryview) as a stretch of memory
process     reading and writing the memory of another process of this host (Cross Memory Attach)
identity    which process that is, so that a number that is used again is not taken for it
"""
