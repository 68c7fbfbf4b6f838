"""`monarch.rdma`: each name imported from where meshbook defines it."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.rdma.action import RDMAAction as RDMAAction
from meshbook.runtime.rdma.buffer import RDMABuffer as RDMABuffer
from meshbook.runtime.rdma.hardware import RDMAReadTransferWarning as RDMAReadTransferWarning
from meshbook.runtime.rdma.hardware import RDMATcpFallbackWarning as RDMATcpFallbackWarning
from meshbook.runtime.rdma.hardware import RDMAWriteTransferWarning as RDMAWriteTransferWarning
from meshbook.runtime.rdma.hardware import get_rdma_backend as get_rdma_backend
from meshbook.runtime.rdma.hardware import is_ibverbs_available as is_ibverbs_available
from meshbook.runtime.rdma.hardware import is_rdma_available as is_rdma_available

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
