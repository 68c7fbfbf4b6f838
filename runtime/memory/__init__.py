"""Memory as the system sees it: addresses, other processes, segments. Knows no node, no message and no torch by import.

local       what a user gave us (tensor, array, memoryview) as a stretch of memory
process     reading and writing the memory of another process of this host (Cross Memory Attach)
segments    memory that is shared with others: the side that fills it; `shelf` decides which, `layout` is its form
mappings    the side that reads it
identity    which process that is, so that a number that is used again is not taken for it
stretches   which addresses overlap
form        which tensor or array bytes are, so that they are one again elsewhere
pages       large pages, for memory that is moved in bulk
"""
