"""A block's forward and backward pass as one list of operations.

The block runs once on tensors without data; every operation of its forward pass and of autograd's backward pass is
written down in the order in which eager PyTorch would do it, so what is cut out of the list later gives the same
numbers, bit by bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from plafond.memory.kernels import Target, chosen_kernels
from plafond.memory.shapes import on_shapes

aten = torch.ops.aten


class NotCapturable(Exception):
    """The block does something that a list of operations cannot say; it has to run as it is."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a block is called with, without data.

    Args:
        leaves: the flattened arguments; tensors are on ``meta``.
        spec: how they are put together.
        tensors: places of the tensors among the leaves.
        state: the block's parameters and buffers by name, on ``meta``.
        device: where the block computes.
    """

    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    tensors: tuple[int, ...]
    state: dict[str, Tensor]
    device: torch.device


def without_data(tensor: Tensor) -> Tensor:
    """A stand-in on ``meta``."""
    stand = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return stand.requires_grad_(tensor.requires_grad)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """The list of operations; each node's ``meta["val"]`` is its result without data, ``meta["owner"]`` the node
    whose memory the result lies in; ``meta["learns"]`` says of what is given whether it wants a gradient.

    Args:
        inputs: the arguments' placeholders.
        state: those of parameters and buffers, in the order of the call.
        tangents: those of the outputs' gradients.
        nodes: operations in order.
        forward: so many of them belong to the forward pass.
        outputs: the forward pass's results.
        gradients: for each input and each item of the state its gradient, or None; then further summands.
        further: for each of the further summands the place of the input to whose gradient it is to be added.
        places: where the outputs stand among the leaves of the block's return value.
        constants: leaves of the return value, None at those places.
        spec: how the leaves are put together.
    """

    inputs: tuple[fx.Node, ...]
    state: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    forward: int
    outputs: tuple[fx.Node, ...]
    gradients: tuple[fx.Node | None, ...]
    further: tuple[int, ...]
    places: tuple[int, ...]
    constants: tuple[Any, ...]
    spec: pytree.TreeSpec

    def pack(self, results: Sequence[Any]) -> Any:
        """The block's own return value from its tensors."""
        leaves = list(self.constants)
        for place, result in zip(self.places, results, strict=True):
            leaves[place] = result
        return pytree.tree_unflatten(leaves, self.spec)


def capture(
    block: nn.Module,
    forward: Callable[..., Any],
    call: Call,
    target: Target,
    wanted: Sequence[bool] | None = None,
) -> Joint:
    """Write down what `forward` and its backward pass do.

    Args:
        block: whose parameters `forward` uses.
        forward: the block's own forward.
        call: what it is called with.
        target: whose kernels are chosen.
        wanted: for each output whether it receives a gradient; all do by default.

    Raises:
        NotCapturable: something in it needs data, or changes a tensor that others see.
    """
    with _disable_current_modes(), chosen_kernels(target), torch.enable_grad():
        tensors = [
            without_data(tensor)
            for tensor in (*(call.leaves[place] for place in call.tensors), *call.state.values())
        ]
        count = len(call.tensors)
        recorder = _Recorder(call.device)
        inputs = [
            recorder.placeholder(f"input_{place}", tensor) for place, tensor in enumerate(tensors[:count])
        ]
        state = [
            recorder.placeholder(f"state_{place}", tensor) for place, tensor in enumerate(tensors[count:])
        ]
        try:
            with recorder:
                leaves, spec = _run(block, forward, call, tensors)
                places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
                results = [leaves[place] for place in places]
                outputs = [recorder.node(result) for result in results]
        except NotCapturable:
            raise
        except RuntimeError as error:  # what torch says when an answer depends on data
            raise NotCapturable(str(error)) from error
        forward_nodes = len(recorder.operations())
        ends = [torch.empty_like(result.detach()) for result in results]
        tangents = [recorder.placeholder(f"tangent_{place}", tensor) for place, tensor in enumerate(ends)]
        gradients: list[fx.Node | None] = [None] * len(tensors)
        chosen = [
            (result, end)
            for index, (result, end) in enumerate(zip(results, ends, strict=True))
            if result.requires_grad and (wanted is None or wanted[index])
        ]
        learning = [place for place, tensor in enumerate(tensors) if tensor.requires_grad]
        if chosen and learning:
            with recorder:
                found = torch.autograd.grad(
                    [result for result, _ in chosen],
                    [tensors[place] for place in learning],
                    [end for _, end in chosen],
                    allow_unused=True,
                )
            for place, gradient in zip(learning, found, strict=True):
                gradients[place] = None if gradient is None else recorder.node(gradient)
    further: list[int] = []
    handed_on = {result.shape for result in results}
    for place, node in enumerate(gradients[:count]):
        if node is None or tensors[place].shape in handed_on:
            continue
        # What a block does not hand on changed, other blocks are given as well. Autograd adds each use's gradient to
        # the sum over all blocks, one after the other: adding them up per block would round differently.
        gradients[place], *rest = _summands(node)
        gradients += rest
        further += [place] * len(rest)
    return Joint(
        inputs=tuple(inputs),
        state=tuple(state),
        tangents=tuple(tangents),
        nodes=recorder.operations(),
        forward=forward_nodes,
        outputs=tuple(outputs),
        gradients=tuple(gradients),
        further=tuple(further),
        places=places,
        constants=tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves),
        spec=spec,
    )


def _summands(total: fx.Node) -> list[fx.Node]:
    """What autograd added up to `total`, in its order."""
    found: list[fx.Node] = []
    readers = 0  # a sum so far is read by the next one only
    while total.target is aten.add.Tensor and not total.kwargs and len(total.users) == readers:
        before, last = total.args
        if not isinstance(before, fx.Node) or not isinstance(last, fx.Node):
            break
        if not before.meta["val"].shape == last.meta["val"].shape == total.meta["val"].shape:
            break
        found.append(last)
        total, readers = before, 1
    return [total, *reversed(found)]


def _run(
    block: nn.Module, forward: Callable[..., Any], call: Call, tensors: Sequence[Tensor]
) -> tuple[list[Any], pytree.TreeSpec]:
    leaves = list(call.leaves)
    count = len(call.tensors)
    for place, tensor in zip(call.tensors, tensors[:count], strict=True):
        leaves[place] = tensor
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    with _reparametrize_module(block, dict(zip(call.state, tensors[count:], strict=True))):
        return pytree.tree_flatten(forward(*args, **kwargs))


_Key = tuple[Any, ...]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes operations down. A value is known by where it lies: autograd hands saved tensors out as new objects."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.graph = fx.Graph()
        self._nodes: dict[_Key, fx.Node] = {}
        self._owners: dict[int, fx.Node] = {}
        self._overwritten: set[_Key] = set()
        self._alive: list[Tensor] = []

    def operations(self) -> tuple[fx.Node, ...]:
        """What was written down so far."""
        return tuple(node for node in self.graph.nodes if node.op == "call_function")

    def placeholder(self, name: str, tensor: Tensor) -> fx.Node:
        """A value that is given."""
        node = self.graph.placeholder(name)
        node.meta["learns"] = tensor.requires_grad
        self._note(tensor, node)
        return node

    def node(self, tensor: Tensor) -> fx.Node:
        """The node whose value `tensor` is."""
        key = _key(tensor)
        if key in self._overwritten:
            raise NotCapturable("a tensor is changed in place while a view of it is in use")
        found = self._nodes.get(key)
        if found is None:
            raise NotCapturable("a tensor comes from outside of the block")
        return found

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        storage = tensor.untyped_storage()._cdata
        owner = self._owners.setdefault(storage, node)
        node.meta["val"] = tensor.detach()
        node.meta["owner"] = owner
        self._nodes[_key(tensor)] = node
        self._overwritten.discard(_key(tensor))
        self._alive.append(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out, _ = on_shapes(func, args, kwargs or {})
        if func is aten.detach.default or func is aten.alias.default:
            return out
        given = pytree.tree_map_only(Tensor, self.node, (args, kwargs or {}))
        given = pytree.tree_map_only(torch.device, lambda _: self.device, given)
        if func._schema.is_mutable:
            func = self._ordinary(func, args)
        node = self.graph.call_function(func, *given)
        if isinstance(out, Tensor):
            self._note(out, node)
        elif isinstance(out, (tuple, list)):
            for place, value in enumerate(out):
                if isinstance(value, Tensor):
                    self._note(value, self.graph.call_function(operator.getitem, (node, place)))
        else:
            raise NotCapturable(f"{func} gives no tensor")
        return out

    def _ordinary(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The operation that gives what the in-place `func` writes."""
        name, overload = func.overloadpacket.__name__, func._overloadname
        plain = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
        if func.namespace != "aten" or plain is None or overload not in plain.overloads():
            raise NotCapturable(f"{func} changes a tensor in place")
        changed = args[0].untyped_storage()._cdata
        if self._owners[changed].op == "placeholder":
            raise NotCapturable(f"{func} changes a tensor that was given")
        self._overwritten.update(key for key in self._nodes if key[0] == changed)
        del self._owners[changed]  # what is written from here on is a value of its own
        return getattr(plain, overload)


def _key(tensor: Tensor) -> _Key:
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )
