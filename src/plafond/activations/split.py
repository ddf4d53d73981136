"""Two functions out of one list of operations: a block's forward pass and its backward pass.

The forward function returns what is kept beside the block's results. The backward function starts from that and from
the results' gradients; whatever else its operations read it computes again, each piece right before it is used for
the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.graph import _BoxedCodeGen

from plafond.activations.capture import Joint
from plafond.activations.choose import closure, repeatable

aten = torch.ops.aten
Pass = Callable[[list[Tensor]], tuple[Any, ...]]
"""Takes its arguments in a list, which it empties, so that each is freed after its last use."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """``run`` takes inputs and state and returns the results, then what is kept.

    Args:
        run: the function.
        kept: names of the kept results that it returns.
        inputs: places of the block's inputs that are kept as well.
    """

    run: Pass
    kept: tuple[str, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Backward:
    """``run`` takes kept results and inputs, then state, then the results' gradients.

    Args:
        run: the function; it returns the gradients that are not None.
        kept: names of the kept results that it takes.
        inputs: places of the inputs that it takes.
        state: places of the state that it takes.
        tangents: places of the results' gradients that it takes.
    """

    run: Pass
    kept: tuple[str, ...]
    inputs: tuple[int, ...]
    state: tuple[int, ...]
    tangents: tuple[int, ...]


def forward_of(joint: Joint, kept: Iterable[fx.Node]) -> Forward:
    """The forward pass, which keeps the results in `kept`."""
    chosen = set(kept)
    inputs = tuple(place for place, node in enumerate(joint.inputs) if node in chosen)
    results = sorted((node for node in chosen if node.op != "placeholder"), key=_position(joint))
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in (*joint.inputs, *joint.state)}
    # random numbers are drawn in the block's own order, even those that nobody uses
    drawn = [node for node in joint.nodes[: joint.forward] if not repeatable(node)]
    _copy(graph, joint, copies, [*drawn, *joint.outputs, *results])
    graph.output(tuple(copies[node] for node in (*joint.outputs, *results)))
    return Forward(run=_function(graph), kept=tuple(node.name for node in results), inputs=inputs)


def backward_of(joint: Joint, kept: Iterable[str], inputs: Iterable[int]) -> Backward:
    """The backward pass, given what the forward pass kept.

    Args:
        joint: the block's operations.
        kept: names of results that are there; others are computed again.
        inputs: places of inputs that are there.
    """
    there = {node for node in joint.nodes if node.name in set(kept)}
    there |= {joint.inputs[place] for place in inputs}
    wanted = [node for node in joint.gradients if node is not None]
    used = closure(wanted, there)
    graph = fx.Graph()
    order = [*(node for node in joint.nodes if node in there), *joint.inputs, *joint.state, *joint.tangents]
    given = [node for node in order if node in used]
    copies = {node: graph.placeholder(node.name) for node in given}
    for node, copy in copies.items():
        copy.meta = dict(node.meta)
    for node in joint.nodes[joint.forward :]:
        if node in used:
            _copy(graph, joint, copies, [node])
    _copy(graph, joint, copies, wanted)
    graph.output(tuple(copies[node] for node in wanted))
    _add_in_place(graph)
    chosen = set(given)
    return Backward(
        run=_function(graph),
        kept=tuple(node.name for node in given if node in there and node.op != "placeholder"),
        inputs=_places(joint.inputs, chosen),
        state=_places(joint.state, chosen),
        tangents=_places(joint.tangents, chosen),
    )


def _places(nodes: Sequence[fx.Node], chosen: set[fx.Node]) -> tuple[int, ...]:
    return tuple(place for place, node in enumerate(nodes) if node in chosen)


def _position(joint: Joint) -> Callable[[fx.Node], int]:
    places = {node: place for place, node in enumerate(joint.nodes)}
    return lambda node: places[node]


def _copy(graph: fx.Graph, joint: Joint, copies: dict[fx.Node, fx.Node], wanted: Sequence[fx.Node]) -> None:
    """Append to `graph` what leads to `wanted`, each operation after those that it reads."""
    for last in wanted:
        stack = [last]
        while stack:
            node = stack[-1]
            if node in copies:
                stack.pop()
                continue
            missing = [argument for argument in node.all_input_nodes if argument not in copies]
            if missing:
                stack += reversed(missing)
                continue
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
            stack.pop()


def _add_in_place(graph: fx.Graph) -> None:
    """Let sums of gradients reuse the memory of a summand that nothing else reads, as autograd does."""
    owners: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, int] = {}
    first: dict[fx.Node, fx.Node] = {}  # by the original's owner: the copy that owns the memory here
    nodes = list(graph.nodes)
    for place, node in enumerate(nodes):
        original = node.meta.get("owner")
        owners[node] = first.setdefault(original, node) if original is not None else node
        for argument in node.all_input_nodes:
            last[owners[argument]] = place
    for place, node in enumerate(nodes):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        for summand, other in (node.args, node.args[::-1]):
            if _reusable(summand, node, owners) and last[owners[summand]] == place:
                node.target, node.args = aten.add_.Tensor, (summand, other)
                mine, theirs = owners[node], owners[summand]
                last[theirs] = max(last[theirs], last.get(mine, place))
                for alias, held in owners.items():
                    if held is mine:
                        owners[alias] = theirs
                break


def _reusable(summand: Any, total: fx.Node, owners: dict[fx.Node, fx.Node]) -> bool:
    if not isinstance(summand, fx.Node) or owners[summand].op != "call_function":
        return False
    value, made = summand.meta["val"], total.meta["val"]
    same = value.shape == made.shape and value.stride() == made.stride() and value.dtype == made.dtype
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return bool(same and whole)


def _function(graph: fx.Graph) -> Pass:
    """The code of a graph without the graph: some are kept for long, and each has thousands of objects."""
    graph.set_codegen(_BoxedCodeGen())
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<operations of a block>", "exec"), names)
    return partial(names["forward"], None)
