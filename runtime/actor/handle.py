"""The attributes of an actor mesh besides its endpoints, for type checkers. At run time it is an `ActorMesh`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Self

    from meshbook.runtime.actor.future import Future
    from meshbook.runtime.geometry import MeshTrait, Region

    class Handle(MeshTrait):
        """The methods of an actor mesh, as attributes of the actor's class."""

        @property
        def mesh_name(self) -> str: ...
        @property
        def region(self) -> Region: ...
        def _with_region(self, region: Region) -> Self: ...
        @property
        def initialized(self) -> Future[None]: ...
        def __await__(self) -> Generator[Any, None, Self]: ...
        def stop(self, reason: str = "stopped by client") -> Future[None]: ...
        def reload(self, cls: type[Handle] | None = None) -> Future[None]: ...
