"""A joblib backend that runs tasks on a load-balanced view; imported only where joblib is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from joblib.parallel import AutoBatchingMixin, ParallelBackendBase, register_parallel_backend

if TYPE_CHECKING:
    from meshbook.magics.compat.balanced import LoadBalancedView


def register(find_view: Callable[[], LoadBalancedView], name: str, *, make_default: bool) -> None:
    """Register the backend under this name; `find_view` is called when joblib first uses it."""

    class Backend(AutoBatchingMixin, ParallelBackendBase):
        """Runs joblib's tasks on ranks."""

        def __init__(self, view: LoadBalancedView | None = None, **options: Any) -> None:
            super().__init__(**options)
            self._view = view or find_view()

        def effective_n_jobs(self, n_jobs: int) -> int:
            """Return the number of ranks."""
            return len(self._view)

        def submit(self, function: Any, callback: Callable[[Any], object] | None = None) -> Any:
            """Run a batch on the next free rank."""
            result = self._view.apply_async(function)
            if callback is not None:
                result.add_done_callback(lambda done: callback(done.result()))
            return result

        apply_async = submit

    register_parallel_backend(name, Backend, make_default=make_default)
