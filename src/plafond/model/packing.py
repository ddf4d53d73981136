"""How a frozen weight is stored, and how it is unpacked.

A packed weight is a list of tensors and a *layout*: the name of a number format and, after a colon, the columns of the
weight where they cannot be seen from the tensors (``uint4:3072``). Packing and unpacking are plain torch, the same on
every device and without data.

Formats (``K`` columns, ``G`` = 64 values in a row that share a scale; rows are filled up to whole groups):

=========================  ==============================================  ==================================
format                     tensors                                         bytes per parameter
=========================  ==============================================  ==================================
``float8``                 e4m3 numbers, a bfloat16 scale per row          1 + 2/K
``int8``                   numbers in ±127, a bfloat16 scale per row       1 + 2/K
``nf4``                    two codes per byte, a bfloat16 scale per group  0.5 + 2/G (and a table of 2 KiB)
``uint2`` ... ``uint8``    codes of so many bits, packed densely; a        bits/8 + 4/G
                           bfloat16 scale and zero point per group
=========================  ==============================================  ==================================

Scales are rounded to bfloat16 *before* the numbers are chosen, so that unpacking in bfloat16 multiplies by exactly the
scale that was meant. nf4's scales are not quantised a second time.

Both directions work through a weight in pieces of `PIECE` values, so that what they take on the way stays small:
packing takes four float32 pieces (128 MiB) at most; unpacking takes the dense weight and, for the ``uint`` formats, one
or two pieces of one-byte codes (16 MiB), for nf4 a piece of indices and one of values (32 MiB in bfloat16). float8 and
int8 unpack into the dense weight directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PLAIN = ""
"""The layout of a weight that is stored as it is."""
GROUP = 64
"""So many values of a row share a scale."""
PIECE = 2**23
"""Values that are packed or unpacked at a time."""

_TINY = 1e-30
_FLOAT8 = torch.float8_e4m3fn
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""NormalFloat's values: each stands for the same share of a normal distribution (QLoRA, appendix E)."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A way to store numbers.

    Args:
        bytes_per_parameter: of the numbers and the scales of groups, without what there is per row or per weight.
        pack: some rows of a weight in float32 to tensors whose first dimension is those rows.
        unpack: these tensors (and those of `tables`) to the dense rows in a dtype.
        grouped: whether rows are filled up to whole groups.
        tables: what every weight holds besides, on a device.
    """

    bytes_per_parameter: float
    pack: Callable[[Tensor], list[Tensor]]
    unpack: Callable[[list[Tensor], torch.dtype], Tensor]
    grouped: bool = True
    tables: Callable[[torch.device], list[Tensor]] = lambda _: []


def pack(weight: Tensor, name: str) -> tuple[list[Tensor], str]:
    """Store a weight (out, in) in the format `name`, on its own device.

    Returns:
        The packed tensors and the layout.
    """
    made = FORMATS[name]
    rows, columns = weight.shape
    step = max(1, PIECE // columns)
    whole: list[Tensor] = []
    for first in range(0, rows, step):
        piece = made.pack(weight[first : first + step].float())
        if not whole:
            if step >= rows:
                whole = piece
                break
            whole = [part.new_empty(rows, *part.shape[1:]) for part in piece]
        for into, part in zip(whole, piece, strict=True):
            into[first : first + step].copy_(part)
    return whole + made.tables(weight.device), f"{name}:{columns}" if made.grouped else name


def dense(weight: list[Tensor], layout: str, dtype: torch.dtype) -> Tensor:
    """The weight (out, in) in `dtype`; a new tensor unless the layout is `PLAIN`."""
    if layout == PLAIN:
        return weight[0]
    name, _, columns = layout.partition(":")
    out = FORMATS[name].unpack(weight, dtype)
    return out[:, : int(columns)] if columns and int(columns) != out.shape[1] else out


# ---------------------------------------------------------------------------------------------------- by row


def _largest(x: Tensor) -> Tensor:
    """Of each last dimension the largest absolute value, never 0."""
    low, high = torch.aminmax(x, dim=-1)
    return torch.maximum(low.neg_(), high).clamp_(min=_TINY)


def _pack_float8(x: Tensor) -> list[Tensor]:
    most = torch.finfo(_FLOAT8).max
    scale = _largest(x).div_(most).bfloat16()[:, None]
    return [(x / scale).clamp_(-most, most).to(_FLOAT8), scale]


def _pack_int8(x: Tensor) -> list[Tensor]:
    scale = _largest(x).div_(127).bfloat16()[:, None]
    return [(x / scale).round_().clamp_(-127, 127).to(torch.int8), scale]


def _unpack_rows(weight: list[Tensor], dtype: torch.dtype) -> Tensor:
    numbers, scale = weight
    return numbers.to(dtype).mul_(scale.to(dtype))


# ---------------------------------------------------------------------------------------------------- by group


def _groups(x: Tensor) -> Tensor:
    """(rows, columns) as (rows, groups, `GROUP`), filled up with zeros."""
    if missing := -x.shape[1] % GROUP:
        x = F.pad(x, (0, missing))
    return x.view(x.shape[0], -1, GROUP)


def _unpack_groups(
    codes: Tensor, values: Callable[[Tensor], Tensor], dtype: torch.dtype, zero: Tensor | None, scale: Tensor
) -> Tensor:
    """``(values(codes) - zero) * scale``; only `values` works in pieces, and the rest in place."""
    rows, groups = scale.shape
    out = torch.empty(rows, groups, GROUP, dtype=dtype, device=codes.device)
    step = max(1, PIECE // (groups * GROUP))
    for into, piece in zip(torch.split(out, step), torch.split(codes, step), strict=True):
        into.copy_(values(piece))
    if zero is not None:
        out.sub_(zero[..., None].to(dtype))
    out.mul_(scale[..., None].to(dtype))
    return out.view(rows, groups * GROUP)


def _pack_nf4(x: Tensor) -> list[Tensor]:
    x = _groups(x)
    scale = _largest(x).bfloat16()
    codes = _codes(x.device)
    middles = (codes[1:] + codes[:-1]).div_(2)
    found = torch.bucketize(x / scale[..., None], middles, out_int32=True).to(torch.uint8)
    packed = torch.bitwise_left_shift(found[..., ::2], 4).bitwise_or_(found[..., 1::2])
    return [packed, scale]


def _codes(device: torch.device) -> Tensor:
    return torch.tensor(_NF4).to(device, copy=True)


def _nf4_table(device: torch.device) -> list[Tensor]:
    """The two values that each byte stands for, (256, 2)."""
    codes = _codes(device)
    pairs = (codes[:, None].expand(16, 16), codes[None, :].expand(16, 16))
    return [torch.stack(pairs, dim=-1).view(256, 2)]


def _unpack_nf4(weight: list[Tensor], dtype: torch.dtype) -> Tensor:
    codes, scale, table = weight
    table = table.to(dtype)

    def values(piece: Tensor) -> Tensor:
        return torch.index_select(table, 0, piece.flatten().int()).view(*piece.shape[:2], GROUP)

    return _unpack_groups(codes, values, dtype, None, scale)


def _planes(bits: int) -> list[tuple[int, int, slice]]:
    """What the codes of a group are split into, so that bytes are filled: width, lowest bit, bytes of the group."""
    found, place = [], 0
    for width in (8, 4, 2, 1):
        if bits & width:
            found.append((width, place, slice(place * GROUP // 8, (place + width) * GROUP // 8)))
            place += width
    return found


def _unsigned(bits: int) -> Format:
    """Codes 0 ... 2^bits - 1 with a zero point that need not be whole: both ends of a group are met."""
    most, planes = 2**bits - 1, _planes(bits)

    def pack_rows(x: Tensor) -> list[Tensor]:
        x = _groups(x)
        low, high = torch.aminmax(x, dim=-1)
        low.clamp_(max=0)
        scale = high.clamp_(min=0).sub_(low).div_(most).clamp_(min=_TINY).bfloat16()
        zero = low.neg_().div_(scale).clamp_(max=most).bfloat16()
        codes = (x / scale[..., None]).add_(zero[..., None]).round_().clamp_(0, most).to(torch.uint8)
        packed = []
        for width, place, _ in planes:
            part = torch.bitwise_right_shift(codes, place).bitwise_and_(2**width - 1)
            *rest, filled = part.view(*codes.shape[:2], 8 // width, -1).unbind(2)
            for more in reversed(rest):
                filled = torch.bitwise_left_shift(filled, width).bitwise_or_(more)
            packed.append(filled)
        return [torch.cat(packed, dim=-1), zero, scale]

    def unpack(weight: list[Tensor], dtype: torch.dtype) -> Tensor:
        packed, zero, scale = weight
        bytewise = (1, 1, -1, 1)
        shifts = {
            width: torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device).view(bytewise)
            for width, _, _ in planes
            if width < 8
        }

        def values(piece: Tensor) -> Tensor:
            codes: Tensor | None = None
            for width, place, where in planes:
                part = piece[..., where] if len(planes) > 1 else piece
                if width < 8:
                    part = torch.bitwise_right_shift(part[..., None, :], shifts[width])
                    part.bitwise_and_(2**width - 1)
                    part = part.view(*piece.shape[:2], GROUP)
                codes = part if codes is None else codes.bitwise_or_(part.bitwise_left_shift_(place))
            assert codes is not None
            return codes

        return _unpack_groups(packed, values, dtype, zero, scale)

    return Format(bytes_per_parameter=bits / 8 + 4 / GROUP, pack=pack_rows, unpack=unpack)


FORMATS: Mapping[str, Format] = {
    "float8": Format(bytes_per_parameter=1, pack=_pack_float8, unpack=_unpack_rows, grouped=False),
    "int8": Format(bytes_per_parameter=1, pack=_pack_int8, unpack=_unpack_rows, grouped=False),
    "nf4": Format(bytes_per_parameter=0.5 + 2 / GROUP, pack=_pack_nf4, unpack=_unpack_nf4, tables=_nf4_table),
    **{f"uint{bits}": _unsigned(bits) for bits in range(2, 9)},
}
"""By the name that a layout begins with."""
