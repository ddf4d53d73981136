"""How fast a device is, by doing what training does most for a second each: products, copies, transfers."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from plafond.memory.calibration import Rates

SECONDS = 1.0
"""Of each measurement."""

PRODUCTS = ((4608, 3072, 3072), (4608, 3072, 12288), (4608, 12288, 3072))
"""Tokens, features in, features out: what a picture of 1024 pixels and its text are in a 12-billion transformer."""
SMALLER = 8
"""On a CPU, sides are divided by this."""
COPIED = 256 * 2**20
"""Bytes of a copy: far more than a cache holds."""


def rates_of(device: torch.device) -> Rates:
    """Measure a device."""
    memory = _copying(device)
    return Rates(
        matmul_flops=_multiplying(device),
        memory_bandwidth=memory,
        # a CPU's main memory is its own
        link_bandwidth=_transferring(device) if device.type == "cuda" else memory,
    )


def product_dtype(device: torch.device) -> torch.dtype:
    """The number format in which products are timed: the fastest that training uses on the device."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def _multiplying(device: torch.device) -> float:
    scale = 1 if device.type == "cuda" else SMALLER
    dtype = product_dtype(device)
    flops, calls = 0, []
    for shape in PRODUCTS:
        tokens, given, made = (side // scale for side in shape)
        x = torch.randn(tokens, given, device=device, dtype=dtype)
        weight = torch.randn(made, given, device=device, dtype=dtype)
        calls.append((x, weight.t(), torch.empty(tokens, made, device=device, dtype=dtype)))
        flops += 2 * tokens * given * made

    def products() -> None:
        for x, weight, out in calls:
            torch.mm(x, weight, out=out)

    return flops / _seconds(products, device)


def _copying(device: torch.device) -> float:
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED / _seconds(lambda: target.copy_(source), device)


def _transferring(device: torch.device) -> float:
    source = torch.zeros(COPIED, dtype=torch.uint8).pin_memory()
    target = torch.empty(COPIED, dtype=torch.uint8, device=device)
    return COPIED / _seconds(lambda: target.copy_(source, non_blocking=True), device)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, over as many as fit into `SECONDS`."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()  # the first one chooses and loads kernels
    wait()
    calls, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < SECONDS or not calls:
        for _ in range(3):
            run()
        wait()
        calls += 3
    return passed / calls
