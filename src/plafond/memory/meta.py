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
from typing import Any

import torch
from torch import Tensor

from plafond.memory.kernels import Target, scratch
from plafond.memory.ledger import Ledger
from plafond.memory.shapes import Call, on_shapes
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
        self._call: Call | None = None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the operation on shapes alone; of a call seen before, only the outputs are made."""
        self._call = None
        if func is _ANY and args[0].untyped_storage()._cdata in self._blank:
            return torch.tensor(False)  # an answer, not a tensor of the device
        answer = _ANSWERS.get(id(func))
        if answer is not None and isinstance(args[0], Tensor) and args[0].is_meta:
            found = answer(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if func._schema.name.startswith("bitsandbytes"):
            return None
        out, self._call = on_shapes(func, args, kwargs)
        if self._call is not None:
            self._fresh = self._call.makes
        return out

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

    def prepare_products(self) -> None:
        """Let both threads that multiply, this one and autograd's, have their workspaces."""
        while self.target.is_cuda and self.workspaces < 2:
            self.workspaces += 1
            self.reserve(self.target.cublas_workspace)

    def hidden(self, func: Any, args: tuple[Any, ...], out: Any) -> Iterable[int]:
        """Memory inside kernels that the target has and ``meta`` has not."""
        if not self.target.is_cuda:
            return ()  # a virtual GPU's kernels take nothing
        if self.workspaces < (2 if self._backward else 1) and func in _PRODUCTS:
            # each thread that multiplies has its own handle: this one, then autograd's
            self.workspaces += 1
            self.reserve(self.target.cublas_workspace)
        return scratch(func, args, out)


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


_ANSWERS: Mapping[int, Callable[..., Any]] = {
    id(aten._local_scalar_dense.default): _scalar,
    id(aten._to_copy.default): _copy,
    id(aten.nonzero.default): _nonzero,
    id(aten.equal.default): lambda *_: True,
    id(aten.is_nonzero.default): lambda *_: True,
}

_ANY = aten.any.default

_PRODUCTS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.addmm_.default, aten.bmm.default, aten.baddbmm.default}
)
