"""The ledger: every byte that tensors take on one device, as they come and go.

A dispatch mode sees the outputs of each operation. A storage that it has not met is an allocation; views share their
storage and are free. A storage is freed when its last reference dies, wherever that is held (Python, the autograd
graph, a checkpoint's frame): torch keeps one Python object per storage alive as long as the storage itself, so a weak
reference to that object tells exactly when. Tensor subclasses are counted as the tensors inside them.

What an operation allocates and frees inside itself cannot be seen; `Ledger.hidden` is where a table of such
allocations comes in.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.flop_counter import flop_registry

from plafond.memory.trace import GRANULE, Block, Event, Trace, rounded
from plafond.model import kronecker, linear, norm

_NO_TASK = -1
_FROM_PYTHON = torch.ops.aten.lift_fresh.default
"""`torch.tensor` and the like: made in main memory, and on a GPU's side only if something carries them there."""
_OWN = {
    id(func): inside
    for func, inside in {**linear.OPERATIONS, **kronecker.OPERATIONS, **norm.OPERATIONS}.items()
}
"""Our own operations: they are looked into, so that what they take on the way is counted. Here and in
`plafond.memory.meta` operations, which torch keeps for ever, are known by their identity: they hash slowly."""
_ADD = torch.ops.aten.add.Tensor
_ADD_IN_PLACE = torch.ops.aten.add_.Tensor


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages of one type of device.

    Enter it with `plafond.memory.residence.counting`.

    Args:
        device_type: ``meta``, ``cpu`` or ``cuda``.
        granule: sizes are rounded up to multiples of it.
        flops: count floating-point operations, too.

    Attributes:
        trace: everything so far.
        live: bytes at the moment.
        stage: what is going on between passes through the model; a pass sets ``forward`` and ``backward`` itself.
        host: above 0, new storages are main memory and not counted.
        literal: above 0, sums in a backward pass are not autograd's own and stay as they are written.
        handled: between passes, the block whose tensors were handled last.
    """

    def __init__(self, device_type: str, *, granule: int = GRANULE, flops: bool = False):
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type, self.granule, self.counts_flops = device_type, granule, flops
        self.trace = Trace()
        self.live = 0
        self.stage = "start"
        self.host = 0
        self.literal = 0
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._block: Block | None = None
        self.handled: Block | None = None
        self._frees = 0
        self._fresh: bool | None = None
        self._backward = False
        self._starts: list[int] = []
        self._ranges: list[tuple[int, Block]] = []

    # ------------------------------------------------------------------------------------------------ operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ADD and self._backward and not (kwargs or self.literal) and _sum_of_gradients(args):
            self.run(_ADD_IN_PLACE, args, kwargs)
            return args[0]
        inside = _OWN.get(id(func))
        if inside is not None:
            with self:
                return inside(*args, **kwargs)
        self._fresh = None
        out = self.run(func, args, kwargs)
        self._frees = 0
        if self.host or func is _FROM_PYTHON:
            return out
        block = self._where()
        if self.counts_flops and (count := self.operations(func, args, kwargs, out)):
            flops = self.trace.flops
            flops[block] = flops.get(block, 0) + count
        if self._fresh is not False:
            for place, tensor in enumerate((out,) if type(out) is Tensor else tensors_in(out)):
                if tensor.device.type != self.device_type:
                    continue
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key in self._numbers or (not self._fresh and _lies_in(key, args, kwargs)):
                    continue
                owner = block if block is not None else self._owner(args, place)
                self._allocate(storage, key, self._default_kind(), owner)
        for size in self.hidden(func, args, out):
            self._passing(size, block)
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiles here, and every operation would pass through torch's compiler first

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the operation. `_fresh` may say whether its outputs are new storages; None: look."""
        return func(*args, **kwargs)

    def operations(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
        """Floating-point operations of one operation."""
        count = flop_registry.get(func._overloadpacket)
        return 0 if count is None else int(count(*args, **kwargs, out_val=out))

    def hidden(self, func: Any, args: tuple[Any, ...], out: Any) -> Iterable[int]:
        """Bytes that the operation takes and gives back inside itself, beside its outputs."""
        return ()

    def grown(self, size: int) -> None:
        """Called after each allocation of `size` bytes, with `live` up to date."""

    # ------------------------------------------------------------------------------------------------ by hand

    def adopt(self, tensors: Iterable[Tensor], kind: str, block: Block | None = None) -> None:
        """Count tensors that exist already."""
        for tensor in tensors:
            for inner in flat(tensor):
                storage = inner.untyped_storage()
                key = storage._cdata
                if key in self._numbers:
                    self.trace.kinds[self._numbers[key]] = kind
                else:
                    self._allocate(storage, key, kind, block if block is not None else self._where())

    def adopt_module(self, module: nn.Module, kind: str = "weights") -> None:
        """Count a module's parameters and buffers, in its own order, each under its block."""
        for name, tensor in _state(module):
            self.adopt([tensor], kind, block_in(name))

    def release_module(self, module: nn.Module) -> None:
        """Stop counting a module's parameters and buffers: it was moved to main memory."""
        for _, tensor in _state(module):
            for inner in flat(tensor):
                key = inner.untyped_storage()._cdata
                if key in self._numbers:
                    self._free(key)

    def label(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Say what counted tensors are; others are passed over."""
        for tensor in tensors:
            for inner in flat(tensor):
                number = self._numbers.get(inner.untyped_storage()._cdata)
                if number is not None:
                    self.trace.kinds[number] = kind

    def holds(self, tensor: Tensor) -> bool:
        """Whether `tensor` is counted."""
        return all(inner.untyped_storage()._cdata in self._numbers for inner in flat(tensor))

    def reserve(self, size: int, kind: str = "temporaries") -> None:
        """Count bytes that stay and belong to no tensor, such as a library's workspace."""
        number = self._note(rounded(size, self.granule), kind, None)
        self.trace.events.append(Event(number, True, self.stage, None))
        self.live += self.trace.sizes[number]
        self.grown(self.trace.sizes[number])

    def mark(self) -> None:
        """The peak is sought from here on, and operations are counted from 0."""
        self.trace.start = len(self.trace.events)
        self.trace.flops.clear()

    def work_on(self, name: str) -> None:
        """Attribute what happens from now on to the block that the dotted `name` begins with, if it does."""
        self._block = block_in(name)

    def finish(self) -> None:
        """Stop counting: what dies from here on is only taken apart because nobody looks any more."""
        self._numbers.clear()

    def watch(self, model: nn.Module) -> list[Callable[[], None]]:
        """Attribute what `model` does to its blocks; returns functions that undo it."""
        handles = [model.register_forward_pre_hook(self._model_entered)]
        handles.append(model.register_forward_hook(self._model_left))
        for name, block in blocks_of(model):
            handles.append(block.register_forward_pre_hook(self._entering(name)))
            handles.append(block.register_forward_hook(self._leaving(name)))
        return [handle.remove for handle in handles]

    def watch_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Recognise the gradients of `parameters`."""

        def accumulated(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self.label([parameter.grad], "gradients")

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------------------------------------ repeated work

    def number(self, tensor: Tensor) -> int | None:
        """Which allocation a tensor is; None when it is not counted."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def followed(self) -> set[int]:
        """The allocations that tensors hold."""
        return set(self._numbers.values())

    def follow(self, tensor: Tensor, number: int) -> None:
        """Take a tensor for allocation `number`."""
        storage = tensor.untyped_storage()
        self._follow(storage, storage._cdata, number)

    def working_on(self) -> Block | None:
        """The block that is being computed or loaded."""
        return self._where()

    # ------------------------------------------------------------------------------------------------ where

    def _where(self) -> Block | None:
        """The block that is being computed, forward or backward."""
        if torch._C._current_graph_task_id() == _NO_TASK:
            if self._backward:
                self._backward, self._block, self.handled, self.stage = False, None, None, "update"
            return self._block
        if not self._backward:
            self._backward, self._block, self.stage = True, None, "backward"
        node = torch._C._current_autograd_node()
        if node is not None:
            # Nodes are numbered in the order of the forward pass. A number outside every block is that of the
            # arithmetic between blocks, or of a parameter's gradient, and belongs to the block before it.
            number = node._sequence_nr()
            place = bisect_right(self._starts, number) - 1
            if place >= 0 and number < self._ranges[place][0]:
                self._block = self._ranges[place][1]
        return self._block

    def _owner(self, args: tuple[Any, ...], place: int) -> Block | None:
        """The block whose tensors an operation between passes works on.

        An operation on lists (the optimizer's) makes its n-th output from its n-th inputs; one without tensors makes
        something for the parameter that was handled before.
        """
        for argument in args:
            many = isinstance(argument, (list, tuple)) and len(argument) > place
            value = argument[place] if many else argument
            if isinstance(value, Tensor):
                number = self._numbers.get(value.untyped_storage()._cdata)
                if number is not None and self.trace.owners[number] is not None:
                    self.handled = self.trace.owners[number]
                    return self.handled
        return self.handled if self.stage == "update" else None

    def _model_entered(self, module: nn.Module, args: Any) -> None:
        if torch._C._current_graph_task_id() == _NO_TASK:
            self._backward, self._block = False, None
            self.stage = "forward"

    def _model_left(self, module: nn.Module, args: Any, out: Any) -> None:
        if torch._C._current_graph_task_id() == _NO_TASK:
            self._block = None

    def _entering(self, block: Block) -> Callable[..., None]:
        def entered(module: nn.Module, args: Any) -> None:
            if torch._C._current_graph_task_id() == _NO_TASK:
                self._block = block
                self._starts.append(torch._C._autograd._get_sequence_nr())
                self._ranges.append((2**63, block))

        return entered

    def _leaving(self, block: Block) -> Callable[..., None]:
        def left(module: nn.Module, args: Any, out: Any) -> None:
            if torch._C._current_graph_task_id() == _NO_TASK:
                self._ranges[-1] = (torch._C._autograd._get_sequence_nr(), block)

        return left

    # ------------------------------------------------------------------------------------------------ bytes

    def _default_kind(self) -> str:
        return "activations" if self.stage == "forward" and not self._backward else "temporaries"

    def _note(self, size: int, kind: str, owner: Block | None) -> int:
        trace = self.trace
        trace.sizes.append(size)
        trace.kinds.append(kind)
        trace.owners.append(owner)
        return len(trace.sizes) - 1

    def _allocate(self, storage: Any, key: int, kind: str, owner: Block | None) -> None:
        size = rounded(storage.nbytes(), self.granule)
        if size == 0:
            return
        number = self._note(size, kind, owner)
        self._follow(storage, key, number)
        self.trace.events.append(Event(number, True, self.stage, owner))
        self.live += size
        self.grown(size)

    def _follow(self, storage: Any, key: int, number: int) -> None:
        """Note when a storage dies that is allocation `number`."""
        self._numbers[key] = number
        ledger = weakref.ref(self)

        def died(_: Any) -> None:
            alive = ledger()
            if alive is not None and alive._numbers.get(key) == number:
                alive._free(key)

        self._references[key] = weakref.ref(storage, died)

    def _free(self, key: int) -> None:
        number = self._numbers.pop(key)
        del self._references[key]
        block = self._where()
        if block is None:
            block = self.trace.owners[number]
            if self._replaced(block):
                block = self.handled
        self._frees += 1
        self.trace.events.append(Event(number, False, self.stage, block))
        self.live -= self.trace.sizes[number]

    def _replaced(self, owner: Block | None) -> bool:
        """Whether what dies belonged to the parameter before the one that is handled now.

        ``x = f(p)`` in a loop over parameters first makes the new x; then the old one dies, and with it at most one
        intermediate of the expression. Lists that die have no operation so close before them.
        """
        now = self.handled
        if self.stage != "update" or owner is None or now is None or self._frees > 1:
            return False
        return owner.index == now.index - 1 if owner.group == now.group else now.index == 0

    def _passing(self, size: int, block: Block | None) -> None:
        number = self._note(rounded(size, self.granule), "temporaries", block)
        self.trace.events.append(Event(number, True, self.stage, block))
        self.live += self.trace.sizes[number]
        self.grown(self.trace.sizes[number])
        self.trace.events.append(Event(number, False, self.stage, block))
        self.live -= self.trace.sizes[number]


def _sum_of_gradients(args: tuple[Any, ...]) -> bool:
    """Whether autograd adds up the gradients of a tensor that is used several times.

    It does so in place when nobody else holds the sum so far, but never while a dispatch mode is active
    (``can_accumulate_inplace`` in ``input_buffer.cpp``); the ledger restores the former. The references counted are
    autograd's, the Python object's and two of the call itself; the storage's are the tensor's and the Python object's.
    """
    total, new = args
    return (
        torch._C._current_graph_task_id() != _NO_TASK
        and not torch.is_grad_enabled()
        and isinstance(total, Tensor)
        and isinstance(new, Tensor)
        and total.shape == new.shape
        and total.dtype == new.dtype
        and total._use_count() <= 4  # type: ignore[attr-defined]
        and torch._C._storage_Use_Count(total.untyped_storage()._cdata) <= 2
        and torch._C._current_autograd_node() is not None
    )


def blocks_of(model: nn.Module) -> list[tuple[Block, nn.Module]]:
    """The blocks of a model: the items of the module lists that stand directly in it, or what it calls its blocks."""
    lists = {name: child for name, child in model.named_children() if isinstance(child, nn.ModuleList)}
    groups: dict[str, list[nn.Module]] = getattr(model, "block_groups", lists)
    return [
        (Block(group, index), block) for group, blocks in groups.items() for index, block in enumerate(blocks)
    ]


def block_in(name: str) -> Block | None:
    """The block that a parameter's dotted name begins with: ``blocks.3`` of ``blocks.3.ff.weight``."""
    group, _, rest = name.partition(".")
    index = rest.partition(".")[0]
    return Block(group, int(index)) if index.isdecimal() else None


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def flat(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors inside a tensor subclass; a plain tensor itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from flat(getattr(tensor, name))
    else:
        yield tensor


def tensors_in(out: Any) -> Iterator[Tensor]:
    """The plain tensors in what an operation takes or gives."""
    if isinstance(out, Tensor):
        yield from flat(out)
    elif isinstance(out, (list, tuple)):
        for item in out:
            yield from tensors_in(item)


def _lies_in(key: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a storage is that of an input."""
    return any(key == tensor.untyped_storage()._cdata for tensor in tensors_in((*args, *kwargs.values())))
