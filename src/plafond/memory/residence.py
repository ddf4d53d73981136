"""Where tensors are: on the device that is being filled, or in main memory.

On a GPU the difference is a tensor's device. On the CPU under a virtual ceiling both are the same RAM, so the
trainer says which is which: what it makes inside `host_memory` is main memory, `put` carries tensors over, `move_in`
and `move_out` carry modules. Without a ledger these do what ``.to(device)`` does and nothing else.

Importing this module does not load torch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from plafond.memory.ledger import Ledger

    Mark = Callable[[], AbstractContextManager[object]]
    Module = TypeVar("Module", bound=nn.Module)

_ledgers: list[Ledger] = []
"""The ledgers that are counting, the innermost last."""
_apart: Mark | None = None


@contextmanager
def counting(ledger: Ledger) -> Iterator[Ledger]:
    """Let `ledger` see every operation of this thread inside the ``with`` block."""
    _ledgers.append(ledger)
    try:
        with ledger:
            yield ledger
    finally:
        _ledgers.remove(ledger)


@contextmanager
def host_memory() -> Iterator[None]:
    """What is made inside the ``with`` block lies in main memory, whatever the device."""
    for ledger in _ledgers:
        ledger.host += 1
    counted = list(_ledgers)
    try:
        with _apart() if _apart else nullcontext():
            yield
    finally:
        for ledger in counted:
            ledger.host -= 1


@contextmanager
def as_written() -> Iterator[None]:
    """Operations inside the ``with`` block run as they are written: see `Ledger.literal`."""
    counted = list(_ledgers)
    for ledger in counted:
        ledger.literal += 1
    try:
        yield
    finally:
        for ledger in counted:
            ledger.literal -= 1


def put(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor from main memory on the device (and in `dtype`)."""
    if not _ledgers:
        return tensor.to(device=device, dtype=dtype, copy=_apart is not None)
    # from main memory a copy even on the CPU, so that it lives as long as a GPU's would
    there = any(ledger.holds(tensor) for ledger in _ledgers)
    moved = tensor.to(device=device, dtype=dtype, copy=not there)
    for ledger in _ledgers:
        ledger.label([moved], "inputs")
    return moved


def release(device: torch.device) -> None:
    """Give memory that nothing uses any more back to the device."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def retire(tensor: Tensor) -> Tensor:
    """A copy in main memory that is complete when this returns."""
    with host_memory():
        return tensor.clone() if tensor.device.type == "meta" else tensor.to("cpu", copy=True)


def park(tensor: Tensor) -> Tensor:
    """A copy in main memory, from which `put` brings it back.

    On a GPU the memory is pinned and the copy runs on the current stream, so what is enqueued later may reuse the
    tensor's memory at once.
    """
    with host_memory():
        if tensor.device.type != "cuda":
            return tensor.clone()
        import torch

        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)


@contextmanager
def apart(mark: Mark) -> Iterator[None]:
    """Let what carries tensors over copy on the CPU, too, as on a GPU: for comparing with a run without a ledger.

    Args:
        mark: a context in which whatever `host_memory` encloses is done.
    """
    global _apart
    _apart = mark
    try:
        yield
    finally:
        _apart = None


def move_in(module: Module, device: torch.device) -> Module:
    """A module from main memory on the device; when it does not fit, no part of it stays there."""
    import torch

    try:
        module.to(device)
        if _apart is not None:
            _copy(module)
        for ledger in _ledgers:
            ledger.adopt_module(module)
    except torch.OutOfMemoryError:
        move_out(module)
        raise
    return module


def move_out(module: Module) -> Module:
    """A module from the device in main memory."""
    module.to("cpu")
    if _apart is not None:
        with host_memory():
            _copy(module)
    for ledger in _ledgers:
        ledger.release_module(module)
    return module


def _copy(module: nn.Module) -> None:
    module._apply(lambda tensor: tensor.clone())  # type: ignore[no-untyped-call]


def label(tensors: Iterable[Tensor], kind: str) -> None:
    """Say what counted tensors are (see `plafond.memory.trace.KINDS`)."""
    if _ledgers:
        chosen = list(tensors)
        for ledger in _ledgers:
            ledger.label(chosen, kind)


def settle(tensors: Iterable[Tensor], kind: str) -> None:
    """Count tensors that a library has put on the device, such as a restored optimizer's state.

    Scalars stay out: optimizers keep their step counters in main memory.
    """
    if _ledgers:
        chosen = [tensor for tensor in tensors if tensor.dim() > 0]
        for ledger in _ledgers:
            ledger.adopt(chosen, kind)


@contextmanager
def within(name: str) -> Iterator[None]:
    """What is done inside the ``with`` block belongs to the model's block that the dotted `name` begins with."""
    counted = list(_ledgers)
    for ledger in counted:
        ledger.work_on(name)
    try:
        yield
    finally:
        for ledger in counted:
            ledger.work_on("")


def enter(phase: str) -> None:
    """Say what begins now, for the moment in an out-of-memory message."""
    for ledger in _ledgers:
        ledger.stage = phase
