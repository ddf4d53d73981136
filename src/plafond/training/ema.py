"""An exponential moving average of the trained weights; previews and saved files use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from plafond.memory.residence import retire


class Ema:
    """Float32 averages of named parameters: ``average ← decay · average + (1 − decay) · weight`` after each step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float):
        self.decay = decay
        self.parameters = parameters
        self.averages = {name: p.detach().float().clone() for name, p in parameters.items()}

    def update(self) -> None:
        """Take the current weights into the average."""
        for name, parameter in self.parameters.items():
            self.averages[name].lerp_(parameter.detach().float(), 1 - self.decay)

    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Restore saved averages."""
        for name, average in self.averages.items():
            average.copy_(averages[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the model inside the ``with`` block."""
        # in main memory: saving shall not need room on the device
        weights = {name: retire(parameter.detach()) for name, parameter in self.parameters.items()}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.averages[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(weights[name])
