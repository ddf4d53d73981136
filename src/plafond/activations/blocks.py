"""Blocks that keep what their level says: the functions cut out of a block's operations, in place of its forward.

A block learns its operations the first time that it meets a shape, and blocks that are alike share what they learn.
Without gradients, in previews, a block runs as it is. What a pass keeps hangs on autograd's own node and nowhere
else, so threads and previews do not disturb each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from plafond.activations.capture import Call, Joint, NotCapturable, capture, without_data
from plafond.activations.choose import Choice, Menu
from plafond.activations.levels import KEEP, Level
from plafond.activations.split import Backward, Forward, backward_of, forward_of
from plafond.memory.kernels import Target
from plafond.memory.ledger import blocks_of
from plafond.memory.residence import as_written, park, put
from plafond.model.experts import Experts
from plafond.model.streaming import Ring

REMEMBERED = 64
"""So many combinations of block and shape outlive their models, the last that were asked for."""


@dataclass
class Learnt:
    """A block's operations on one shape.

    Args:
        call: the shape.
        joint: the operations.
        menu: what can be kept.
    """

    call: Call
    joint: Joint
    menu: Menu
    choices: dict[Level, Choice] = field(default_factory=dict)
    forwards: dict[Level, Forward] = field(default_factory=dict)
    backwards: dict[tuple[Level, tuple[bool, ...]], Backward] = field(default_factory=dict)
    others: dict[tuple[bool, ...], Joint] = field(default_factory=dict)

    def choice(self, level: Level) -> Choice:
        """What `level` keeps."""
        if level not in self.choices:
            self.choices[level] = self.menu.choose(level)
        return self.choices[level]

    def forward(self, level: Level) -> Forward:
        """The forward pass at `level`."""
        if level not in self.forwards:
            self.forwards[level] = forward_of(self.joint, self.choice(level).kept)
        return self.forwards[level]


_learnt: OrderedDict[Any, Learnt | NotCapturable] = OrderedDict()
"""What blocks that are alike share, in one model and from one model to the next; the last asked for stands last."""


class PlannedBlock:
    """Takes the place of a block's ``forward``.

    Args:
        block: the block.
        target: the device whose kernels are run or, on ``meta``, predicted.

    Attributes:
        level: what its passes keep from now on.
        learnt: its operations on the shape that it met last; None before, and when they cannot be written down.
    """

    def __init__(self, block: nn.Module, target: Target):
        self.block, self.target = block, target
        self.original: Callable[..., Any] = block.forward
        self.level = KEEP
        self.learnt: Learnt | None = None
        self._ring: tuple[Ring, int] | None = None
        self._state = [
            (held, name, f"{path}.{name}" if path else name)
            for path, module in block.named_modules()
            for held in (module._parameters, module._buffers)
            for name, value in held.items()
            if value is not None
        ]
        self._constants: list[Any] = [module for module in block.modules() if hasattr(module, "constants")]
        self._likeness = (target, _likeness(block), tuple(_layout(tensor) for tensor in self.state()))
        self._met: dict[Any, Learnt | NotCapturable] = {}

    def stream(self, ring: Ring, place: int) -> None:
        """Take frozen weights from a ring from now on, in which the block has this place."""
        self._ring = ring, place

    def at_home(self) -> AbstractContextManager[object]:
        """Inside the ``with`` block a streamed block has its weights where they are stored, in main memory."""
        if self._ring is None:
            return nullcontext()
        ring, place = self._ring
        stored = ring.stored[place]
        return _reparametrize_module(self.block, stored.views(stored.flat))

    def state(self, direction: int = 1) -> list[Tensor]:
        """Parameters and buffers for a pass forward (1) or backward (-1)."""
        visiting = self._visiting(direction)
        return [visiting.get(name, held[key]) for held, key, name in self._state]

    def _visiting(self, direction: int) -> Mapping[str, Tensor]:
        if self._ring is None:
            return {}
        ring, place = self._ring
        return ring.enter(place, direction)

    def _as_it_is(self, *args: Any, **kwargs: Any) -> Any:
        """The block's own forward."""
        visiting = self._visiting(1)
        if not visiting:
            return self.original(*args, **kwargs)
        with _reparametrize_module(self.block, dict(visiting)):
            return self.original(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The block's forward."""
        if not torch.is_grad_enabled():
            return self._as_it_is(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        inputs = [leaves[place] for place in places]
        state = self.state()
        trained = [tensor for tensor in state if tensor.requires_grad]
        if not (trained or any(tensor.requires_grad for tensor in inputs)):
            return self._as_it_is(*args, **kwargs)
        learnt = self.learn(leaves, spec, places, state)
        self.learnt = None if isinstance(learnt, NotCapturable) else learnt
        if isinstance(learnt, NotCapturable):
            if self.level.kind == "keep":
                return self._as_it_is(*args, **kwargs)
            return checkpoint(self._as_it_is, *args, use_reentrant=False, **kwargs)
        further = [inputs[place] for place in learnt.joint.further]
        results = _Pass.apply(  # type: ignore[no-untyped-call]
            self, learnt, self.level, state, len(inputs), *inputs, *trained, *further
        )
        return learnt.joint.pack(results)

    def learn(
        self, leaves: Sequence[Any], spec: pytree.TreeSpec, places: tuple[int, ...], state: list[Tensor]
    ) -> Learnt | NotCapturable:
        """The block's operations on one shape, or why they cannot be written down."""
        shape = tuple(_layout(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        constants = tuple(module.constants() for module in self._constants)
        key = (self.block.training, constants, shape, spec)
        found = self._met.get(key)
        if found is None:
            shared = (self._likeness, *key)
            found = _learnt.get(shared) or self._look(leaves, spec, places, state)
            self._met[key] = _learnt[shared] = found
            _learnt.move_to_end(shared)
            if len(_learnt) > REMEMBERED:
                _learnt.popitem(last=False)
        return found

    def _look(
        self, leaves: Sequence[Any], spec: pytree.TreeSpec, places: tuple[int, ...], state: list[Tensor]
    ) -> Learnt | NotCapturable:
        with _disable_current_modes():  # nobody counts tensors without data
            call = Call(
                leaves=tuple(without_data(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves),
                spec=spec,
                tensors=places,
                state={
                    name: without_data(tensor)
                    for (_, _, name), tensor in zip(self._state, state, strict=True)
                },
                device=leaves[places[0]].device,
            )
            try:
                joint = capture(self.block, self.original, call, self.target)
            except NotCapturable as error:
                return error
            return Learnt(call, joint, Menu(joint))

    def backward(self, learnt: Learnt, level: Level, wanted: tuple[bool, ...]) -> tuple[Joint, Backward]:
        """The backward pass when only the `wanted` results receive gradients."""
        joint = learnt.joint
        if not all(wanted):
            if wanted not in learnt.others:
                learnt.others[wanted] = capture(self.block, self.original, learnt.call, self.target, wanted)
            joint = learnt.others[wanted]
        key = level, wanted
        if key not in learnt.backwards:
            forward = learnt.forward(level)
            learnt.backwards[key] = backward_of(joint, forward.kept, forward.inputs)
        return joint, learnt.backwards[key]


class _Pass(torch.autograd.Function):
    """One pass through a planned block."""

    @staticmethod
    def forward(
        ctx: Any,
        block: PlannedBlock,
        learnt: Learnt,
        level: Level,
        state: list[Tensor],
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        forward = learnt.forward(level)
        inputs = tensors[:count]
        found = forward.run([*inputs, *state])
        results, kept = found[: len(learnt.joint.outputs)], found[len(learnt.joint.outputs) :]
        own = {id(result) for result in results}
        # a kept result hangs on this node; were it the object that is returned, the node would hang on it, too
        ctx.kept = {
            name: (tensor.detach() if id(tensor) in own else tensor, tensor._version)
            for name, tensor in zip(forward.kept, kept, strict=True)
        }
        # what does not learn is the same tensor for all blocks, and stays anyway
        parked = {
            place for place in forward.inputs if level.kind == "offload" and inputs[place].requires_grad
        }
        ctx.inputs = {
            place: (park(tensor) if place in parked else tensor, tensor._version)
            for place, tensor in ((place, inputs[place]) for place in forward.inputs)
        }
        ctx.parked, ctx.device = parked, inputs[0].device
        ctx.pass_ = block, learnt, level
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        block, learnt, level = ctx.pass_
        if ctx.kept is None:
            raise RuntimeError("what this block kept has been used: it can go backward once only")
        kept = [pair for place, pair in ctx.inputs.items() if place not in ctx.parked]
        if any(tensor._version != version for tensor, version in (*kept, *ctx.kept.values())):
            raise RuntimeError(
                "an input or a result of this block was changed in place before its backward pass"
            )
        wanted = tuple(tangent is not None for tangent in tangents)
        joint, backward = block.backward(learnt, level, wanted)
        state = block.state(-1)
        given = [ctx.kept[name][0] for name in backward.kept]
        given += [
            put(tensor, ctx.device) if place in ctx.parked else tensor
            for place, (tensor, _) in ((place, ctx.inputs[place]) for place in backward.inputs)
        ]
        given += [state[place] for place in backward.state]
        given += [
            _laid_out(tangents[place], joint.tangents[place].meta["val"]) for place in backward.tangents
        ]
        learning = [tensor.requires_grad for tensor in state]
        ctx.kept, ctx.inputs, kept, state, tangents = None, {}, [], [], ()
        with as_written():
            found = iter(backward.run(given))
        gradients = [None if node is None else next(found) for node in joint.gradients]
        count = len(joint.inputs)
        trained = [gradients[count + place] for place, learns in enumerate(learning) if learns]
        # fewer results that receive gradients may mean fewer summands
        rest = list(zip(joint.further, gradients[count + len(learning) :], strict=True))
        further: list[Tensor | None] = []
        for place in learnt.joint.further:
            own = next((pair for pair in rest if pair[0] == place), None)
            further.append(own[1] if own else None)
            rest = [pair for pair in rest if pair is not own]
        return None, None, None, None, None, *gradients[:count], *trained, *further


def _laid_out(tangent: Any, like: Tensor) -> Tensor:
    """A result's gradient as the written-down operations expect it: with the strides of the result."""
    given: Tensor = tangent
    sides = zip(like.shape, like.stride(), given.stride(), strict=True)
    if all(expected == found for size, expected, found in sides if size > 1):
        return given
    copy = torch.empty_strided(like.shape, like.stride(), dtype=given.dtype, device=given.device)
    return copy.copy_(given)


def plan_blocks(model: nn.Module, target: Target) -> dict[str, list[PlannedBlock]]:
    """Put a `PlannedBlock` in the place of every block's forward; they come by group, in the model's order."""
    planned: dict[str, list[PlannedBlock]] = {}
    for place, block in blocks_of(model):
        found = PlannedBlock(block, target)
        block.forward = found
        planned.setdefault(place.group, []).append(found)
    return planned


@contextmanager
def at_home(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block all weights of a model are there: those that wait or are streamed, in main memory."""
    planned = [vars(module).get("forward") for module in model.modules()]
    with ExitStack() as stack:
        if isinstance(model, Experts):
            stack.enter_context(model.at_home())
        for block in planned:
            if isinstance(block, PlannedBlock):
                stack.enter_context(block.at_home())
        yield


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device.type, tensor.requires_grad


def _likeness(block: nn.Module) -> tuple[Any, ...]:
    """Equal for blocks that do the same: classes and plain settings of all their parts."""
    return tuple(
        (
            path,
            type(module),
            tuple(
                (name, value if isinstance(value, (int, float, str, bool, type(None))) else type(value))
                for name, value in vars(module).items()
                if not name.startswith("_") and name != "forward" and not isinstance(value, Tensor)
            ),
        )
        for path, module in block.named_modules()
    )
