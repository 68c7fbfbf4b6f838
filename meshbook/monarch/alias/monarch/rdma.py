"""`monarch.rdma`."""

from meshbook.monarch.modules import AliasModule
from meshbook.monarch.rdma import get_rdma_backend as get_rdma_backend
from meshbook.monarch.rdma import is_ibverbs_available as is_ibverbs_available
from meshbook.monarch.rdma import is_rdma_available as is_rdma_available

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
