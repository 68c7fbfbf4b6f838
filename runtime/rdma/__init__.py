"""One-sided bulk data between processes: a process with a handle reads and writes memory without its owner.

    RDMABuffer, RDMAAction      the classes for users                     buffer, action
      -> DataPlane              the plane of one process                  data_plane
           -> BackendSelector   the fastest backend that reaches the owner, and the reasons against the others
           -> Transfers         a thread, deadline, progress, accounting  transfers
                -> TransferBackend  one file each                         backends/
    LeaseTable                  lent memory of this process               leases
    Retention                   dropped memory that is still in use       retention
    ActiveTransfers             transfers of this process                 progress
    MemoryServer                of a host agent, for other hosts          memory_server, protocol, connection
    Broadcast                   one buffer for a whole mesh               broadcast, broadcast_receiver, copies

README.md has the rules: leases, memory under a transfer, retries.
"""
