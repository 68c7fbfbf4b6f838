"""`%mesh resize`: add ranks to a mesh, or remove some."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import lifecycle
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_mesh_name, add_size
from meshbook.runtime.geometry import Extent


@dataclass(frozen=True)
class ResizeVerb(Verb):
    """Resize a mesh (None: the current mesh) to `gpus` workers in its last dimension, or to these sizes."""

    word = "resize"
    description = "Add ranks to a mesh, or remove some; the others keep their state."

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to resize (default: the current mesh)")
        add_size(parser, required=True)

    def run(self, notebook: Notebook) -> None:
        mesh = notebook.meshes.get(self.name)
        sizes = dict(self.shape) if self.shape is not None else {"gpus": self.gpus or 1}

        def follow() -> None:
            if any(known is mesh for known in notebook.meshes):  # the mesh may have gone down meanwhile
                notebook.bind(mesh)

        print(lifecycle.resize(mesh, sizes, follow))
