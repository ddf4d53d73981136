"""What operations return on ``meta``, remembered.

Blocks repeat, and torch works out shapes slowly, in Python: of a call like one seen before only the outputs are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plafond.memory.ledger import tensors_in

_Layout = tuple[torch.Size, tuple[int, ...], torch.dtype] | None


@dataclass
class Call:
    """What is known of an operation on given layouts: its outputs' (None: it gives back its first argument)."""

    layouts: tuple[_Layout, ...] | None
    flops: int | None = None

    @property
    def makes(self) -> bool:
        """Whether its outputs are new tensors."""
        return self.layouts is not None


_calls: dict[Any, Call] = {}


def on_shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Call | None]:
    """``func(*args, **kwargs)``, and what is known of it if a call like it was seen before."""
    nature = _natures.get(id(func)) or _nature(func)
    first = args[0] if args else None
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    if nature.form == "other" or not isinstance(first, Tensor) or not first.is_meta:
        return func(*args, **kwargs), None
    key = _signature(func, args, kwargs)
    call = _calls.get(key)
    if call is None:
        out = func(*args, **kwargs)
        seen = _seen(nature, args, out)
        if seen is not None:
            _calls[key] = seen
        return out, None
    if call.layouts is None:
        return args[0] if nature.returns else None, call
    made = [
        None if layout is None else torch.empty_strided(*layout[:2], dtype=layout[2], device="meta")
        for layout in call.layouts
    ]
    return made[0] if nature.returns == 1 else tuple(made), call


@dataclass(frozen=True)
class _Nature:
    """What is known of an operation.

    Args:
        form: it makes ``new`` tensors, gives back the ``same`` first argument, or is ``other``.
        returns: how many results it has.
    """

    form: str
    returns: int


_natures: dict[int, _Nature] = {}


def _nature(func: Any) -> _Nature:
    schema = func._schema
    fresh = all(result.alias_info is None and str(result.type) == "Tensor" for result in schema.returns)
    first = schema.arguments[0] if schema.arguments else None
    written = first is not None and first.alias_info is not None and first.alias_info.is_write
    form = "other"
    if not schema.is_mutable and schema.returns and fresh:
        form = "new"
    elif written and len(schema.returns) <= 1 and func.overloadpacket.__name__.endswith("_"):
        form = "same"  # in place: on meta nothing changes, and the first argument is what comes back
    found = _natures[id(func)] = _Nature(form, len(schema.returns))
    return found


def _seen(nature: _Nature, args: tuple[Any, ...], out: Any) -> Call | None:
    """What a call says about those like it; None when it cannot be repeated from layouts."""
    if nature.form == "same":
        return Call(None)
    found = out if isinstance(out, tuple) else (out,)
    if not all(value is None or _whole(value) for value in found) or _shares(found, args):
        return None
    return Call(
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
