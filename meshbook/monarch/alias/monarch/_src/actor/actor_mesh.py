"""`monarch._src.actor.actor_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.base import Actor as Actor
from meshbook.runtime.actor.context import Context as Context
from meshbook.runtime.actor.context import Instance as Instance
from meshbook.runtime.actor.context import context as context
from meshbook.runtime.actor.context import current_actor_name as current_actor_name
from meshbook.runtime.actor.context import current_rank as current_rank
from meshbook.runtime.actor.context import current_size as current_size
from meshbook.runtime.actor.endpoint import Accumulator as Accumulator
from meshbook.runtime.actor.endpoint import Endpoint as Endpoint
from meshbook.runtime.actor.explicit_calls import as_endpoint as as_endpoint
from meshbook.runtime.actor.explicit_calls import send as send
from meshbook.runtime.actor.ports import Channel as Channel
from meshbook.runtime.actor.ports import Port as Port
from meshbook.runtime.actor.ports import PortReceiver as PortReceiver
from meshbook.runtime.actor.values import ValueMesh as ValueMesh
from meshbook.runtime.errors import ActorError as ActorError
from meshbook.runtime.geometry import Point as Point
from meshbook.runtime.hosts.session import shutdown_context as shutdown_context
from meshbook.runtime.mesh.actors import ActorMesh as ActorMesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
