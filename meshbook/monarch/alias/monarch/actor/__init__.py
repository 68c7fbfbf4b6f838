"""`monarch.actor`: each name imported from where meshbook defines it."""

from meshbook.monarch.functions import debug_controller as debug_controller
from meshbook.monarch.functions import hosts_from_config as hosts_from_config
from meshbook.monarch.functions import local_proc_mesh as local_proc_mesh
from meshbook.monarch.functions import proc_mesh as proc_mesh
from meshbook.monarch.identities import ProcId as ProcId
from meshbook.monarch.identities import Uid as Uid
from meshbook.monarch.keys import ChannelTransport as ChannelTransport
from meshbook.monarch.modules import ActorModule
from meshbook.monarch.telemetry import get_meter as get_meter
from meshbook.monarch.telemetry import traced as traced
from meshbook.monarch.workers import attach_to_workers as attach_to_workers
from meshbook.monarch.workers import enable_transport as enable_transport
from meshbook.monarch.workers import run_worker_loop_forever as run_worker_loop_forever
from meshbook.monarch.workers import run_worker_loop_until_shutdown as run_worker_loop_until_shutdown
from meshbook.monarch.workers import start_worker_loop_forever as start_worker_loop_forever
from meshbook.runtime.actor.base import Actor as Actor
from meshbook.runtime.actor.context import Context as Context
from meshbook.runtime.actor.context import Instance as Instance
from meshbook.runtime.actor.context import context as context
from meshbook.runtime.actor.context import current_actor_name as current_actor_name
from meshbook.runtime.actor.context import current_rank as current_rank
from meshbook.runtime.actor.context import current_size as current_size
from meshbook.runtime.actor.deferred import returns_future as returns_future
from meshbook.runtime.actor.endpoint import Accumulator as Accumulator
from meshbook.runtime.actor.endpoint import Endpoint as Endpoint
from meshbook.runtime.actor.endpoint import concurrent_endpoint as concurrent_endpoint
from meshbook.runtime.actor.endpoint import endpoint as endpoint
from meshbook.runtime.actor.explicit_calls import as_endpoint as as_endpoint
from meshbook.runtime.actor.explicit_calls import send as send
from meshbook.runtime.actor.failure import MeshFailure as MeshFailure
from meshbook.runtime.actor.failure import UndeliverableMessageEnvelope as UndeliverableMessageEnvelope
from meshbook.runtime.actor.future import Future as Future
from meshbook.runtime.actor.ports import Channel as Channel
from meshbook.runtime.actor.ports import Port as Port
from meshbook.runtime.actor.ports import PortReceiver as PortReceiver
from meshbook.runtime.actor.values import ValueMesh as ValueMesh
from meshbook.runtime.errors import ActorError as ActorError
from meshbook.runtime.errors import CallTimeout as CallTimeout
from meshbook.runtime.errors import DeadlockError as DeadlockError
from meshbook.runtime.errors import SupervisionError as SupervisionError
from meshbook.runtime.geometry import Extent as Extent
from meshbook.runtime.geometry import NDSlice as NDSlice
from meshbook.runtime.geometry import Point as Point
from meshbook.runtime.geometry import Shape as Shape
from meshbook.runtime.geometry import Slice as Slice
from meshbook.runtime.hosts.controllers import get_or_spawn_controller as get_or_spawn_controller
from meshbook.runtime.hosts.faults import Hook
from meshbook.runtime.hosts.session import shutdown_context as shutdown_context
from meshbook.runtime.hosts.session import this_host as this_host
from meshbook.runtime.hosts.session import this_proc as this_proc
from meshbook.runtime.mesh.commands import BootstrapCommand as BootstrapCommand
from meshbook.runtime.mesh.commands import default_bootstrap_cmd as default_bootstrap_cmd
from meshbook.runtime.mesh.hosts import HostMesh as HostMesh
from meshbook.runtime.mesh.procs import ProcMesh as ProcMesh
from meshbook.runtime.telemetry.spans import span as span

unhandled_fault_hook: Hook  # a property of the module's class

ActorModule.adopt(__name__)
del ActorModule, Hook
