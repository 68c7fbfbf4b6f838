"""Memory at the level of the system: addresses, other processes, segments. No nodes, no messages, no torch import.

local_memory      a user's tensor, array or memoryview as an address range, and its type and shape
process           reading and writing the memory of another process of this host (Cross Memory Attach)
segments          shared memory that this process fills; `layout` describes the form
mappings          shared memory of other processes, mapped here
pages             large pages, for memory that is moved in bulk
cuda              the CUDA driver
pinned            memory that GPUs can access, and copies through it
process_identity  identities of processes that survive the reuse of a pid

Large message bodies (`Settings.shared_bytes`, 512 KiB) for processes of the same host lie in a segment, a memfd that
the receiver maps. The first touch of memory costs ten times what a copy costs, so both sides cache: the sender its
segments (few sizes, at most 512 MiB idle, ten seconds), the receiver its mappings. Each receiver has a word in the
segment's first page, which records that it has opened the message or is done. A segment is free again when the last
view is gone or the reader's process has ended; no message is sent for that. A single receiver may write into the
segment itself. Of several, each has a copy on write, as has a forked child. A segment that a child may see is never
reused.
"""
