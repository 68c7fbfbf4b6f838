"""Modules of the controller whose parameters and computation are on the ranks of a mesh."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from meshbook.runtime.tensor.arguments import find_faults
from meshbook.runtime.tensor.engine import LOCALLY
from meshbook.runtime.tensor.executor import ValueRef
from meshbook.runtime.tensor.failures import format_call
from meshbook.runtime.tensor.lanes import Ref
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.modules.hosted import MOST_KEYS, Outline, Setting
from meshbook.runtime.tensor.modules.outputs import RULES
from meshbook.runtime.tensor.modules.plans import ModulePlan
from meshbook.runtime.tensor.recovery import Recovery
from meshbook.runtime.tensor.templates import Pickled, user_place
from meshbook.runtime.tensor.tensor import MeshTensor, make_constant, make_tensor, unite
from meshbook.runtime.wire.pickling import dump_detached

_PROPAGATE: Final = ("cached", "inspect")


def module_to_mesh(
    module: nn.Module | Callable[[], nn.Module],
    mesh: Any,
    plan: Any = "replicate",
    *,
    outputs: str = "auto",
    propagate: str = "cached",
) -> MeshModule:
    """Put a module on the ranks of a mesh and return its proxy, a module whose parameters are mesh tensors.

        model = module_to_mesh(Net(), mesh, plan={"data_parallel": "fsdp"})
        optimizer = torch.optim.AdamW(model.parameters())
        loss = loss_fn(model(x), y)

    A function such as `lambda: Net()` makes the module on the ranks, with the random numbers that it would draw here.
    The plan says what each dimension of the mesh does to the module:

    - "replicate", the default: each rank has the whole module, as with DistributedDataParallel
    - "fsdp": torch's `fully_shard`. `("fsdp", ["layers.*"])` names the submodules that are gathered one at a time, or
      has a function of name and submodule that chooses them; without, they are the entries of each ModuleList
    - a dict from names of submodules, in which a `*` stands for one part of a name, to "colwise", "rowwise",
      "sequence", a ParallelStyle of torch or the placement of the weight: tensor parallel, torch's
      `parallelize_module`, over the last dimension
    - a dict from names of dimensions to any of these

    Tensors among the arguments of forward may be sharded along their first dimension, the batch, over dimensions that
    are not tensor parallel; other ones are gathered. Plain tensors are replicated. Each rank computes its entries.
    Batch normalization has the statistics of the whole batch. Otherwise the module must treat entries separately.

    `outputs` says how the outputs of a sharded batch make up the whole: "auto" finds the dimension of the batch, and
    refuses outputs without one; "mean" takes those as means over the batch; "batch": all have the batch first.
    `propagate` says when the controller waits for the shapes: "cached" at the first call with new shapes, "inspect" at
    each call. Forward raises RemoteException if that call fails; otherwise the fetch of a result does.

    Raises TypeError and ValueError for arguments that do not fit, KeyError for an unknown dimension, and
    RemoteException for what the function or the plan raises on a rank.
    """
    place: Place = mesh.place()
    if not place.is_global:
        raise TypeError(
            "module_to_mesh() takes a mesh of the global view: meshbook.Mesh(...), or procs.as_device_mesh()"
        )
    if not (isinstance(module, nn.Module) or callable(module)):
        raise TypeError(f"module_to_mesh() takes a module, or a function that makes it, not {module!r}")
    if isinstance(module, nn.Module) and any(isinstance(each, MeshTensor) for each in module.state_dict().values()):
        raise TypeError("the module is on a mesh already")
    for name, given, allowed in (("outputs", outputs, RULES), ("propagate", propagate, _PROPAGATE)):
        if given not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}, not {given!r}")
    checked = ModulePlan.of(plan, mesh.dims)
    remote = _HostedElsewhere(place, propagate == "cached")
    remote.build(module, checked, outputs)
    return MeshModule(remote, plan)


class _HostedElsewhere:
    """The commands for a module on the ranks."""

    def __init__(self, place: Place, is_cached: bool) -> None:
        self.place = place
        self._is_cached = is_cached
        self._ref = place.lane.new_ref(place.engine.new_ids(1))
        self._source: tuple[Any, ...] = ()  # what the ranks make it of
        self._dtype: torch.dtype | None = None  # what it was converted to since
        self.reload: Callable[[], None] | None = None  # reads the last checkpoint
        self._keys: dict[Any, int] = {}
        self._numbers = itertools.count()
        self._results: dict[int, Any] = {}  # what forward returns, by key
        self._gradients: dict[Any, list[Meta | None]] = {}  # what backward returns
        self._sent: tuple[Any, Any] = (None, None)  # the modes and trained parameters that the ranks have
        self.root: MeshModule | None = None

    def build(self, source: Any, plan: ModulePlan, outputs: str) -> None:
        engine = self.place.engine
        engine.share_random()
        # Pickled here and now: the caller may change the module, and it may be sent again after a heal.
        stream = io.BytesIO()
        dump_detached(source, stream)
        self._plan = plan
        self._source = stream.getvalue(), Pickled.of(plan, "the plan of a module"), outputs
        engine.issue(self.place.lane, ("module", self._ref.id, *self._source), user_place(1), 0)
        engine.flush()
        engine.modules.add(self)

    def restore(self, plan: Recovery) -> bool:
        """Make the module again where that is necessary; return whether it lacks values.

        FSDP and tensor parallelism keep the process groups that they began with.
        """
        parallel = self._plan
        if self.root is None:
            return False
        ids = self.root.ids()
        if not (plan.new or parallel.fsdp or parallel.tensor_parallel or any(each in plan.moves for each in ids)):
            return False
        self._sent = None, None
        self.place.engine.issue(self.place.lane, ("module", self._ref.id, *self._source, ids, self._dtype), None, 0)
        return any(each in plan.failed for each in ids)

    def outline(self) -> tuple[Outline, list[MeshTensor]]:
        """Return the description of the module, and its parameters and buffers; waits."""
        number, _ = self._call("outline", ((), {}))
        outline: Outline = self._describe("module_to_mesh", number)
        first = self.place.engine.new_ids(len(outline.metas) + 1)
        numbers = list(range(first, first + len(outline.metas)))
        self._issue("tensors", ((), {}), numbers, 0)
        return outline, [self._make(meta, number) for meta, number in zip(outline.metas, numbers, strict=True)]

    def convert(self, dtype: torch.dtype) -> None:
        number, _ = self._call("convert", ((dtype,), {}))
        self._describe("the conversion of a module", number)
        self._dtype = dtype
        self._forget()

    def _forget(self) -> None:
        """Ask the ranks again for what the module returns."""
        for cache in (self._keys, self._results, self._gradients):
            cache.clear()

    def run(self, path: str, args: Any, kwargs: Any) -> Any:
        """Run forward of a part of the module, as one command."""
        assert self.root is not None
        leaves, spec = tree_flatten((args, kwargs))
        leaves = [self._take(each) for each in leaves]
        tensors = [each for each in leaves if isinstance(each, MeshTensor)]
        faults = [(tensor, fault) for tensor in tensors for fault in find_faults(tensor, self.place)]
        if faults:
            raise TypeError(format_call(f"forward of {type(self.root).__name__}", args, kwargs, faults))
        parameters = self.root.unique_parameters
        modes = [part.training for part in self.root.unique_parts]
        trained = [each.requires_grad for each in parameters]
        has_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (*tensors, *parameters))
        device = self.place.engine.device
        autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        described = (each._meta if isinstance(each, MeshTensor) else (type(each), each) for each in leaves)
        wanted = [each.requires_grad for each in tensors]
        if len(self._results) >= MOST_KEYS:
            self._forget()
        try:
            case = path, spec, torch.get_default_dtype(), *described, *modes, *trained, *wanted, autocast, has_grad
            key = self._keys.get(case)
            if key is None:
                key = self._keys[case] = next(self._numbers)
        except TypeError:  # an argument that cannot be part of a key
            key = next(self._numbers)
        tree = tree_unflatten(
            [ValueRef(each._ref.id) if isinstance(each, MeshTensor) else each for each in leaves], spec
        )
        changes = [new if new != old else None for new, old in zip((modes, trained), self._sent, strict=True)]
        self._sent = modes, trained
        forward = _ForwardCall(self, key, path, tree, wanted, Setting(autocast, has_grad, *changes))
        if not has_grad:
            outputs = forward.issue()
        else:
            outputs = _Forward.apply(forward, *tensors, *parameters)
        new = iter(outputs)
        return tree_unflatten([next(new) if isinstance(each, Meta) else each for each in forward.leaves], forward.spec)

    def _take(self, leaf: Any) -> Any:
        """Return an argument of forward: a plain tensor as a replicated one."""
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, MeshTensor):
            return leaf
        if leaf.requires_grad:
            raise TypeError(
                "a local tensor that requires grad cannot be an argument of a module on a mesh, as its gradient is not "
                "sent back: distribute() it first"
            )
        return make_constant(leaf, self.place)

    def issue_forward(self, call: _ForwardCall) -> list[MeshTensor]:
        """Issue the command; set what else it returns, and the reference for a backward."""
        engine, lane = self.place.engine, self.place.lane
        engine.share_random()
        known = self._results.get(call.key) if self._is_cached else None
        arguments: Any = (call.path, call.tree, call.wanted, call.setting, call.key, known is not None), {}
        if known is None:
            number, kept = self._call("forward", arguments, keep=True)
            tree, has_gradient = self._describe("forward of a module", number)
            leaves, spec = tree_flatten(tree)
            known = self._results[call.key] = leaves, spec, has_gradient
            outputs = self._unpack(number, [each for each in leaves if isinstance(each, Meta)])
        else:
            metas = [each for each in known[0] if isinstance(each, Meta)]
            first = engine.new_ids(len(metas) + 1)
            numbers = list(range(first, first + len(metas)))
            kept = lane.new_ref(first + len(metas))
            self._issue("forward", arguments, numbers, kept.id)
            outputs = [self._make(meta, number) for meta, number in zip(metas, numbers, strict=True)]
        call.leaves, call.spec, call.has_gradient = known
        call.ref = kept
        return outputs

    def issue_backward(self, call: _ForwardCall, gradients: Sequence[Any], keep: bool) -> list[MeshTensor | None]:
        """Issue the command of a backward; return the gradients of inputs and parameters."""
        case = call.key, tuple(each is not None for each in gradients)
        known = self._gradients.get(case) if self._is_cached else None
        assert call.ref is not None
        refs = [None if each is None else ValueRef(each._ref.id) for each in gradients]
        arguments: Any = (ValueRef(call.ref.id), refs, keep, known is not None), {}
        if known is None:
            number, _ = self._call("backward", arguments)
            known = self._gradients[case] = self._describe("backward of a module", number)
            made = iter(self._unpack(number, [each for each in known if each is not None]))
        else:
            metas = [each for each in known if each is not None]
            first = self.place.engine.new_ids(len(metas) + 1)
            numbers = list(range(first, first + len(metas)))
            self._issue("backward", arguments, numbers, 0)
            made = iter([self._make(meta, number) for meta, number in zip(metas, numbers, strict=True)])
        return [None if each is None else next(made) for each in known]

    # -- commands ---------------------------------------------------------------------

    def _call(self, method: str, arguments: Any, *, keep: bool = False) -> tuple[Ref, Ref]:
        """Call a method whose whole result gets one id; return that, and that of what stays on the ranks."""
        lane = self.place.lane
        first = self.place.engine.new_ids(2)
        result, kept = lane.new_ref(first), lane.new_ref(first + 1)
        self._issue(method, arguments, result.id, kept.id if keep else 0)
        return result, kept

    def _issue(self, method: str, arguments: Any, outputs: Any, kept: int) -> None:
        pickled = Pickled.of(arguments, f"an argument of {method} of a module")
        command = "method", self._ref.id, method, pickled, outputs, kept
        self.place.engine.issue(self.place.lane, command, user_place(1), pickled.nbytes)

    def _describe(self, name: str, result: Ref) -> Any:
        return unite(self.place.engine, name, self.place.engine.describe(self.place.lane, result.id))

    def _unpack(self, result: Ref, metas: Sequence[Meta]) -> list[MeshTensor]:
        engine, lane = self.place.engine, self.place.lane
        first = engine.new_ids(len(metas) + 1)
        numbers = list(range(first, first + len(metas)))
        engine.issue(lane, ("unpack", result.id, numbers), None)
        return [self._make(meta, number) for meta, number in zip(metas, numbers, strict=True)]

    def _make(self, meta: Meta, number: int) -> MeshTensor:
        return make_tensor(meta, self.place.lane.new_ref(number), self.place)


class _ForwardCall:
    """One forward; its backward needs the reference to what the ranks have kept of it."""

    def __init__(
        self, remote: _HostedElsewhere, key: int, path: str, tree: Any, wanted: list[bool], setting: Setting
    ) -> None:
        self._remote = remote
        self.key = key
        self.path = path
        self.tree = tree
        self.wanted = wanted
        self.setting = setting
        self.leaves: list[Any] = []
        self.spec: Any = None
        self.has_gradient: list[bool] = []
        self.ref: Ref | None = None
        self._is_over = False

    def issue(self) -> list[MeshTensor]:
        return self._remote.issue_forward(self)

    def issue_backward(self, gradients: Sequence[Any]) -> list[MeshTensor | None]:
        if self._is_over:
            raise RuntimeError(
                "Trying to backward through a module's forward a second time: pass retain_graph=True to the first "
                "backward"
            )
        keep = bool(torch._C._autograd._get_current_graph_task_keep_graph())
        self._is_over = not keep
        found = self._remote.issue_backward(self, gradients, keep)
        if not keep:
            self.ref = None  # the ranks drop what they have kept, also while the program keeps the loss
        return found


class _Forward(torch.autograd.Function):
    """The node of a module's forward in the controller's graph."""

    @staticmethod
    def forward(ctx: Any, call: _ForwardCall, *tensors: Any) -> tuple[Any, ...]:
        outputs = call.issue()
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(each for each, has_gradient in zip(outputs, call.has_gradient, strict=True) if not has_gradient)
        )
        return tuple(outputs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *ctx.call.issue_backward(gradients)


class ModulePart(nn.Module):
    """A submodule of a module on a mesh. Calling it runs that submodule on the ranks."""

    def __init__(self, remote: _HostedElsewhere, path: str, kind: str, extra: str) -> None:
        super().__init__()
        self._remote = remote
        self._path = path
        self._kind = kind
        self._extra = extra

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run this part on the ranks; its result is mesh tensors."""
        return self._remote.run(self._path, args, kwargs)

    def __getitem__(self, key: int | str) -> Any:
        names = list(self._modules)
        if isinstance(key, str):
            return self._modules[key]
        return self._modules[names[key]]

    def _get_name(self) -> str:
        return self._kind

    def extra_repr(self) -> str:
        return self._extra

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Convert to another dtype, which `to`, `half` and the like come to."""
        root = self._remote.root
        if root is None or not root.unique_parameters:
            return self
        present = next((each for each in root.unique_parameters if each.is_floating_point()), None)
        if present is None:
            return self
        with LOCALLY():
            wanted = fn(torch.empty(0, dtype=present.dtype, device=present._meta.here))
        if wanted.device.type != present._meta.here.type:
            raise RuntimeError(f"a module on a mesh stays on its ranks: it cannot be moved to {wanted.device}")
        if wanted.dtype != present.dtype:
            if self is not root:
                raise RuntimeError("convert the whole module: a part of a module on a mesh has the dtype of the whole")
            self._remote.convert(wanted.dtype)
            root.refresh()
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        is_hosted = isinstance(value, (nn.Module, nn.Parameter)) or name in {
            *self.__dict__.get("_parameters", ()),
            *self.__dict__.get("_buffers", ()),
        }
        if is_hosted and "_remote" in self.__dict__ and self._remote.root is not None:
            raise RuntimeError(f"{name} cannot be replaced on the ranks: change the module, then call module_to_mesh()")
        super().__setattr__(name, value)

    def _refuse_hook(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f"hooks of {self._path!r} would have to run on the ranks: register them before module_to_mesh(), or on the "
            "whole module"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("a module on a mesh cannot be copied: make another with module_to_mesh()")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a module on a mesh cannot be pickled: its values are on the ranks; use meshbook.save_checkpoint()"
        )


class _InnerPart(ModulePart):
    """A submodule below the whole module."""

    register_forward_hook = ModulePart._refuse_hook
    register_forward_pre_hook = ModulePart._refuse_hook
    register_full_backward_hook = ModulePart._refuse_hook
    register_full_backward_pre_hook = ModulePart._refuse_hook


class MeshModule(ModulePart):
    """A module on a mesh, made by `module_to_mesh`: parameters and buffers are mesh tensors with their whole shapes."""

    def __init__(self, remote: _HostedElsewhere, plan: Any) -> None:
        outline, tensors = remote.outline()
        _, kind, extra, is_training = outline.parts[0]
        super().__init__(remote, "", kind, extra)
        self._plan = plan
        self.training = is_training
        parts: dict[str, ModulePart] = {"": self}
        for name, kind, extra, is_training in outline.parts[1:]:
            parts[name] = _InnerPart(remote, name, kind, extra)
            parts[name].training = is_training
            owner, _, own_name = name.rpartition(".")
            parts[owner].add_module(own_name, parts[name])
        count = len(outline.trained)
        parameters = [
            nn.Parameter(each, is_trained) for each, is_trained in zip(tensors[:count], outline.trained, strict=True)
        ]
        for name, index in outline.parameters.items():
            owner, _, own_name = name.rpartition(".")
            parts[owner].register_parameter(own_name, parameters[index])
        for name, (index, is_persistent) in outline.buffers.items():
            owner, _, own_name = name.rpartition(".")
            parts[owner].register_buffer(own_name, tensors[index], is_persistent)
        self._tensors = [*parameters, *tensors[count:]]
        self.unique_parameters = parameters
        self.unique_parts = list(parts.values())
        for each in self._tensors:
            each.__dict__["_is_hosted"] = True
        remote.root = self

    @property
    def mesh(self) -> Any:
        """The mesh that this module is on."""
        return self._remote.place.mesh

    def ids(self) -> list[int]:
        """Return the ids of the parameters and buffers on the ranks."""
        return [each._ref.id for each in self._tensors]

    def remember(self, load: Callable[[], None]) -> None:
        """Let `heal_mesh` call this if parameters are lost."""
        self._remote.reload = load

    def refresh(self) -> None:
        """Take the parameters and buffers of the ranks anew, after a conversion."""
        _, tensors = self._remote.outline()
        for old, new in zip(self._tensors, tensors, strict=True):
            old.__dict__["_is_hosted"] = False
            old.data = new
            old.__dict__["_is_hosted"] = True

    def extra_repr(self) -> str:
        shown = f"mesh={dict(self.mesh.extent)}, plan={self._plan!r}"
        return f"{self._extra}, {shown}" if self._extra else shown
