"""The dry run's device: tensors without data that answer what the trainer's code asks of them.

Everything runs on torch's ``meta`` device, where an operation only works out its output's shape. Three things are
added, so that the code that trains needs no case for it:

* questions whose answer is data (``.item()``, ``nonzero``, a copy to the CPU) get a stand-in: 1 for floats, 0 for
  integers, True for booleans, zeros that take no memory for copies;
* kernels of bitsandbytes, which exist on real devices only, do nothing: its state is allocated by its own code;
* operations that the predicted device does in one kernel and ``meta`` would take apart, or the other way round, are
  replaced: see `plafond.memory.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plafond.memory.kernels import Target, scratch
from plafond.memory.ledger import Ledger, tensors_in
from plafond.memory.trace import GRANULE

aten = torch.ops.aten


class MetaLedger(Ledger):  # type: ignore[no-untyped-call]
    """Counts a dry run for `target`.

    Args:
        target: the device that is predicted.
        granule: sizes are rounded up to multiples of it.

    Attributes:
        workspaces: how many threads have a workspace for matrix products.
    """

    def __init__(self, target: Target, *, granule: int = GRANULE):
        super().__init__("meta", granule=granule, flops=True)
        self.target = target
        self.workspaces = 0
        self._blank: set[int] = set()
        self._call: _Call | None = None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the operation on shapes alone; of a call seen before, only the outputs are made."""
        self._call = None
        if func is _ANY and args[0].untyped_storage()._cdata in self._blank:
            return torch.tensor(False)  # an answer, not a tensor of the device
        nature = _natures.get(id(func)) or _nature(func)
        first = args[0] if args else None
        if nature.answer is not None and isinstance(first, Tensor) and first.is_meta:
            found = nature.answer(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if nature.form == "nothing":
            return None
        if isinstance(first, (list, tuple)) and first:
            first = first[0]
        if nature.form == "other" or not isinstance(first, Tensor) or not first.is_meta:
            return func(*args, **kwargs)
        key = _signature(func, args, kwargs)
        call = _calls.get(key)
        if call is None:
            out = func(*args, **kwargs)
            call = _seen(nature, args, out)
            if call is not None:
                _calls[key] = call
            return out
        self._call = call
        if call.layouts is None:
            self._fresh = False
            return args[0] if nature.returns else None
        self._fresh = True
        made = [
            None if layout is None else torch.empty_strided(*layout[:2], dtype=layout[2], device="meta")
            for layout in call.layouts
        ]
        return made[0] if nature.returns == 1 else tuple(made)

    def operations(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
        """Floating-point operations, which depend on the same as the outputs' layouts."""
        if self._call is None:
            return super().operations(func, args, kwargs, out)
        if self._call.flops is None:
            self._call.flops = super().operations(func, args, kwargs, out)
        return self._call.flops

    def blank(self, parameters: Iterable[Tensor]) -> None:
        """Say which parameters are zero when training starts: Prodigy keeps no copy of those."""
        self._blank.update(parameter.untyped_storage()._cdata for parameter in parameters)

    def hidden(self, func: Any, args: tuple[Any, ...], out: Any) -> Iterable[int]:
        """Memory inside kernels that the target has and ``meta`` has not."""
        if not self.target.is_cuda:
            return ()  # a virtual GPU's kernels take nothing
        if self.workspaces < (2 if self._backward else 1) and func in _PRODUCTS:
            # each thread that multiplies has its own handle: this one, then autograd's
            self.workspaces += 1
            self.reserve(self.target.cublas_workspace)
        return scratch(func, args, out)


_Layout = tuple[torch.Size, tuple[int, ...], torch.dtype] | None


@dataclass
class _Call:
    """What is known of an operation on given layouts: its outputs' (None: it gives back its first argument)."""

    layouts: tuple[_Layout, ...] | None
    flops: int | None = None


_calls: dict[Any, _Call] = {}
"""Calls seen before: blocks repeat, and torch works out shapes slowly, in Python."""


@dataclass(frozen=True)
class _Nature:
    """What is known of an operation.

    Args:
        form: it makes ``new`` tensors, gives back the ``same`` first argument, does ``nothing`` here, or ``other``.
        returns: how many results it has.
        answer: what stands in for its result.
    """

    form: str
    returns: int
    answer: Callable[..., Any] | None


_natures: dict[int, _Nature] = {}


def _nature(func: Any) -> _Nature:
    schema = func._schema
    fresh = all(result.alias_info is None and str(result.type) == "Tensor" for result in schema.returns)
    first = schema.arguments[0] if schema.arguments else None
    written = first is not None and first.alias_info is not None and first.alias_info.is_write
    form = "other"
    if func.namespace == "bitsandbytes":
        form = "nothing"
    elif not schema.is_mutable and schema.returns and fresh:
        form = "new"
    elif written and len(schema.returns) <= 1 and func.overloadpacket.__name__.endswith("_"):
        form = "same"  # in place: on meta nothing changes, and the first argument is what comes back
    found = _natures[id(func)] = _Nature(form, len(schema.returns), _ANSWERS.get(func))
    return found


def _seen(nature: _Nature, args: tuple[Any, ...], out: Any) -> _Call | None:
    """What a call says about those like it; None when it cannot be repeated from layouts."""
    if nature.form == "same":
        return _Call(None)
    found = out if isinstance(out, tuple) else (out,)
    if not all(value is None or _whole(value) for value in found) or _shares(found, args):
        return None
    return _Call(
        tuple(None if value is None else (value.shape, value.stride(), value.dtype) for value in found)
    )


def _whole(value: Any) -> bool:
    """Whether it is a tensor on ``meta`` that its layout describes completely."""
    if not (isinstance(value, Tensor) and value.is_meta and value.storage_offset() == 0):
        return False
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return bool(value.untyped_storage().nbytes() == (extent if value.numel() else 0) * value.element_size())


def _shares(made: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    """Whether an output is a view of an input, as of ``_unsafe_view``, whose schema does not say so."""
    given = {tensor.untyped_storage()._cdata for tensor in tensors_in(args)}
    return any(tensor.untyped_storage()._cdata in given for tensor in tensors_in(made))


def _signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A key for the call: layouts of its tensors and all other arguments."""
    key: list[Any] = [id(func), *kwargs]
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            key.append((value.shape, value.stride(), value.dtype, value.device.type))
        elif isinstance(value, (list, tuple)):
            key.append(
                tuple(
                    (item.shape, item.stride(), item.dtype) if isinstance(item, Tensor) else item
                    for item in value
                )
            )
        else:
            key.append((value, type(value)))
    return tuple(key)


def _scalar(tensor: Tensor) -> float | int | bool:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.dtype.is_floating_point else 0


def _copy(tensor: Tensor, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or torch.device(device).type == "meta":
        return NotImplemented
    return torch.zeros((), dtype=kwargs.get("dtype") or tensor.dtype).expand(tensor.shape)


def _nonzero(tensor: Tensor) -> Tensor:
    return torch.zeros(1, tensor.dim(), dtype=torch.int64, device="meta")


_ANSWERS: Mapping[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: _scalar,
    aten._to_copy.default: _copy,
    aten.nonzero.default: _nonzero,
    aten.equal.default: lambda *_: True,
    aten.is_nonzero.default: lambda *_: True,
}

_ANY = aten.any.default

_PRODUCTS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.addmm_.default, aten.bmm.default, aten.baddbmm.default}
)
