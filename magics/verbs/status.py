"""`%mesh status`: show the state, resources and events of the meshes; `%mesh` alone shows the state."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.cells.detach import print_detached_runs
from meshbook.magics.meshes.status import history_of, state_of, vitals_of
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_mesh_name


@dataclass(frozen=True)
class StatusVerb(Verb):
    """Show the state of a mesh (`name` None: of all), and unless `brief` its vitals and its history."""

    word = "status"
    description = "Show the state, resources and recent events of the meshes."

    name: str | None = None
    brief: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "show only this mesh")

    def run(self, notebook: Notebook) -> None:
        meshes = notebook.meshes
        if not len(meshes):
            print("no mesh is up; %mesh up --gpus 4 starts one, as does the first %%mesh cell")
            print_detached_runs()
            return
        for mesh in [meshes.get(self.name)] if self.name else list(meshes):
            first, *others = state_of(mesh)
            mark = "; the current mesh" if mesh.label and mesh is meshes.get() else ""
            more = [] if self.brief else [*vitals_of(mesh), *history_of(mesh)]
            print("\n".join([f"{first}{mark}", *others, *more]))
