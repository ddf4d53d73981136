"""Which results of a block are kept: an exact choice between bytes and work.

Each operation of the forward pass is a unit with a cost and a size. A unit is *needed* when the backward pass reads
it or when a needed unit is computed again from it; a needed unit is either kept (its bytes times a price) or computed
again (its cost). For one price the cheapest choice is a minimum-closure problem, whose linear program has an integral
solution, so it is exact.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from plafond.activations.capture import Joint
from plafond.activations.levels import CHEAPEST, Level

SMALL = 64
"""Results smaller than the block's input by this factor may be kept by every level."""


@dataclass(frozen=True)
class Unit:
    """One operation that makes something new.

    Args:
        node: its node; None for an input of the block.
        results: the nodes whose memory is its own, among those that may be wanted again.
        size: bytes of the results.
        flops: floating-point operations (2 per multiply-add).
        moved: bytes read and written.
        repeatable: whether it gives the same twice.
    """

    node: fx.Node
    results: tuple[fx.Node, ...]
    size: int
    flops: int
    moved: int
    repeatable: bool

    @property
    def is_attention(self) -> bool:
        """Whether it is an attention kernel."""
        return "scaled_dot_product" in str(self.node.target)

    def cost(self, balance: float) -> float:
        """Time of computing it again, in FLOP."""
        return max(float(self.flops), self.moved * balance)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Results that are kept, the bytes they take, and the cost of what is computed again in FLOP."""

    kept: frozenset[fx.Node]
    size: int
    cost: float


class Menu:
    """What can be kept of a block, and what must be there for its backward pass.

    Args:
        joint: the block's operations.
    """

    def __init__(self, joint: Joint):
        self.joint = joint
        self.backward = {*joint.nodes[joint.forward :], *joint.tangents}
        used = closure([node for node in joint.gradients if node is not None])
        read = [
            argument
            for node in joint.nodes[joint.forward :]
            if node in used
            for argument in node.all_input_nodes
            if argument not in self.backward
        ]
        read += [node for node in joint.gradients if node is not None and node not in self.backward]
        given = {*joint.inputs, *joint.state, *joint.tangents}
        self.state = set(joint.state)
        self.needed = {owner(node) for node in read} - self.state
        self.units, self.unit_of = self._units(given)

    def _units(self, given: set[fx.Node]) -> tuple[list[Unit], dict[fx.Node, Unit]]:
        """Every unit that the backward pass may come to need."""
        units: dict[fx.Node, Unit] = {}
        unit_of: dict[fx.Node, Unit] = {}
        results: dict[fx.Node, set[fx.Node]] = {}
        stack = list(self.needed)
        while stack:
            result = stack.pop()
            maker = source(result)
            known = maker in results
            results.setdefault(maker, set()).add(result)
            if known or maker in given:
                continue
            stack += [
                owner(argument) for argument in maker.all_input_nodes if owner(argument) not in self.state
            ]
        for maker, made in results.items():
            ordered = tuple(sorted(made, key=lambda node: node.name))
            size = sum(_bytes(node) for node in made)
            if maker in given:
                # what does not learn is the same tensor for all blocks
                own = size if maker.meta["learns"] else 0
                unit = Unit(maker, ordered, own, 0, 0, repeatable=False)
            else:
                unit = Unit(maker, ordered, size, _flops(maker), _moved(maker), repeatable=repeatable(maker))
            units[maker] = unit
            unit_of.update(dict.fromkeys(made, unit))
        return list(units.values()), unit_of

    @cached_property
    def input_size(self) -> int:
        """Bytes of the block's largest input."""
        return max((_bytes(node) for node in self.joint.inputs), default=0)

    def choose(self, level: Level) -> Choice:
        """What `level` keeps."""
        if level.kind == "keep":
            return self._outcome(set(), level.balance)
        small = self.input_size / SMALL
        price = CHEAPEST
        forced: set[Unit] = set()
        banned: set[Unit] = set()
        if level.kind == "selective":
            price = level.price
        else:
            banned = {unit for unit in self.units if unit.size > small and unit.repeatable}
            if level.kind == "attention":
                forced = {unit for unit in self.units if unit.is_attention}
        return self._cheapest(price, level.balance, forced, banned - forced)

    def work(self, balance: float) -> float:
        """Cost of both passes when nothing is computed twice, in FLOP."""
        wanted = [*self.joint.outputs, *(node for node in self.joint.gradients if node is not None)]
        makers = {source(owner(node)) for node in closure(wanted) if "owner" in node.meta}
        return sum(
            max(float(_flops(node)), _moved(node) * balance) for node in makers if node.op == "call_function"
        )

    def _cheapest(self, price: float, balance: float, forced: set[Unit], banned: set[Unit]) -> Choice:
        import numpy
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix

        count = len(self.units)
        place = {unit: index for index, unit in enumerate(self.units)}
        costs = numpy.array([unit.cost(balance) for unit in self.units])
        sizes = numpy.array([float(unit.size) for unit in self.units])
        # variables: "is needed", then "is computed again"; their values are scaled to be near 1
        storing = price * sizes
        for unit in banned:
            storing[place[unit]] = 0.0
        dear = costs.sum() + storing.sum() + 1.0
        for unit in banned:
            storing[place[unit]] = 4 * dear
        objective = numpy.concatenate([storing, costs - storing]) / dear
        low, high = numpy.zeros(2 * count), numpy.ones(2 * count)
        for node in self.needed:
            low[place[self.unit_of[node]]] = 1.0
        rows: list[tuple[int, int]] = []  # (smaller, larger)
        for unit in self.units:
            index = place[unit]
            rows.append((count + index, index))
            if not unit.repeatable or unit in forced:
                high[count + index] = 0.0
                continue
            for argument in unit.node.all_input_nodes:
                made = owner(argument)
                if made not in self.state:
                    rows.append((count + index, place[self.unit_of[made]]))
        numbers = numpy.arange(len(rows))
        data = numpy.concatenate([numpy.ones(len(rows)), -numpy.ones(len(rows))])
        places = numpy.concatenate([[a for a, _ in rows], [b for _, b in rows]])
        matrix = coo_matrix(
            (data, (numpy.concatenate([numbers, numbers]), places)), shape=(len(rows), 2 * count)
        )
        found = linprog(
            objective,
            A_ub=matrix.tocsr(),
            b_ub=numpy.zeros(len(rows)),
            bounds=numpy.stack([low, high], 1),
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        again = {unit for unit in self.units if found.x[count + place[unit]] > 0.5}
        return self._outcome(again, balance)

    def _outcome(self, again: set[Unit], balance: float) -> Choice:
        """What is kept when the units in `again` are computed again as far as anything needs them."""
        seen: set[Unit] = set()
        wanted = set(self.needed)
        stack = [self.unit_of[node] for node in wanted]
        while stack:
            unit = stack.pop()
            if unit not in seen:
                seen.add(unit)
                if unit in again:
                    made = {owner(argument) for argument in unit.node.all_input_nodes} - self.state
                    wanted |= made
                    stack += [self.unit_of[node] for node in made]
        # of an operation with several results only those that are read: RMSNorm's row sums, but not what it normalised
        kept = [(unit, wanted.intersection(unit.results)) for unit in seen - again]
        return Choice(
            kept=frozenset(result for _, results in kept for result in results),
            size=sum(
                unit.size if len(results) == len(unit.results) else sum(map(_bytes, results))
                for unit, results in kept
            ),
            cost=sum(unit.cost(balance) for unit in seen & again),
        )


def owner(node: fx.Node) -> fx.Node:
    """The node whose memory a result lies in."""
    found: fx.Node = node.meta["owner"]
    return found


def source(result: fx.Node) -> fx.Node:
    """The operation that makes a result: one of several has a node of its own."""
    first = result.args[0] if result.target is operator.getitem else result
    assert isinstance(first, fx.Node)
    return first


def closure(wanted: Sequence[fx.Node], given: Container[fx.Node] = ()) -> set[fx.Node]:
    """Everything that leads to `wanted`, not going behind what is `given`."""
    found: set[fx.Node] = set()
    stack = list(wanted)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if node not in given:
                stack += node.all_input_nodes
    return found


def _value(node: fx.Node) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _bytes(node: fx.Node) -> int:
    return int(_value(node).untyped_storage().nbytes())


def _values(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found: Any = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return found[0], found[1]


def _flops(node: fx.Node) -> int:
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = _values(node)
    return int(count(*args, **kwargs, out_val=_made(node)))


def _made(node: fx.Node) -> Any:
    if "val" in node.meta:
        return node.meta["val"]
    users: list[Any] = [user for user in node.users if user.target is operator.getitem]
    places = {user.args[1]: user.meta["val"] for user in users}
    # those that nobody asks for leave a gap, so that the others keep their places
    return tuple(places.get(place) for place in range(max(places, default=-1) + 1))


def _moved(node: fx.Node) -> int:
    made = _made(node)
    written = made if isinstance(made, tuple) else (made,)
    values = [*(_value(argument) for argument in node.all_input_nodes), *written]
    return sum(int(value.numel()) * value.element_size() for value in values if value is not None)


def repeatable(node: fx.Node) -> bool:
    """Whether an operation draws no random numbers."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return True
    names = [argument.name for argument in target._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    chance: Any = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(chance == 0.0)
