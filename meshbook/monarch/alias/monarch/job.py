"""`monarch.job`: the sources of hosts. Names that are not part of this version raise an error that says so."""

from meshbook.monarch.commands import exec_command as exec_command
from meshbook.monarch.commands import shell as shell
from meshbook.monarch.functions import hosts_from_config as hosts_from_config
from meshbook.monarch.jobs import JobState as JobState
from meshbook.monarch.jobs import JobTrait as JobTrait
from meshbook.monarch.jobs import LocalJob as LocalJob
from meshbook.monarch.jobs import ProcessJob as ProcessJob
from meshbook.monarch.jobs import SlurmJob as SlurmJob
from meshbook.monarch.jobs import job_load as job_load
from meshbook.monarch.jobs import job_loads as job_loads
from meshbook.monarch.modules import AliasModule
from meshbook.monarch.port_forwarding import PortForwarder as PortForwarder

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
