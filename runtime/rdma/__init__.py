"""Bulk data between processes, one-sidedly: whoever has a handle reads and writes memory whose owner takes no part.

    RDMABuffer, RDMAAction          what users hold                      buffer, action
      -> Station                    the plane of one process             station
           -> Chooser               which way to this owner, and why     chooser (pure: what each way says of itself)
           -> Transfer on a thread, deadline, progress, accounting       transfers
                -> a Way            one file for each                    ways/
    Leases                          what is lent out from here           leases
    Retention                       what was dropped, while it is used   retention
    InProgress                      what is being moved from here        progress
    MemoryServer                    as a host agent, for other hosts     server, protocol, line; lines: the other side
    Broadcast                       one buffer for a whole mesh          broadcast, receiving, copies, followers

**A lease is a word in the owner's memory.** It has a certain number while the memory is lent, and another one later.
Whoever moves data reads it before *and* after, by the same way as the data: so nobody has to be asked.

**Memory under a transfer is not freed**: who moves data notes whose memory he is at, on a page in the run's folder,
before he looks at the lease. The owner who drops a lease changes the word first, then looks at the pages of all
processes of the host, and keeps the memory until it stands on none of them.
"""
