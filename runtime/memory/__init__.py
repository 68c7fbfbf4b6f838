"""Memory as the system sees it: addresses, other processes, segments. Knows no node and no message; no torch import.

local           a user's tensor, array or memoryview as an address range
process         reading and writing the memory of another process of this host (Cross Memory Attach)
segments        shared memory that this process fills; `segment_policy` chooses, `layout` describes the form
mappings        shared memory of other processes, mapped here
identity        identities of processes that survive the reuse of a pid
interval_set    overlaps of address ranges
tensor_form     the tensor or array that bytes are, to make it again elsewhere
pages           large pages, for memory that is moved in bulk
cuda, gpu       the CUDA driver, and GPUs as torch names them

Large message bodies (`Settings.shared_bytes`, 512 KiB) to processes of the same host lie in a segment, a memfd that the
receiver maps. The first touch of memory costs ten times what a copy costs, so both sides keep what they have: the
sender its segments (few sizes, 512 MiB idle at most, ten seconds), the receiver its mappings. A word of each receiver
in the segment's first page says that it has the message, or is done. The segment is free again when the last view is
gone or the reader's process has ended; no message is sent for that. One receiver may write into the segment itself. Of
several, each has a copy on write, and so has a forked child. A segment that a child may see is never used again.
"""
