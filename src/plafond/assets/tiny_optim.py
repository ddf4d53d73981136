"""Optimiser and schedule of the tiny Flux training: Muon, AdamW and a learning rate led by the clock."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def orthogonalize(update: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrix of ``update`` (rows, columns), by Newton-Schulz in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Tensor = x.T if tall else x
    return result.to(update.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates, for matrices and convolution kernels.

    Kernels are taken as (out, in * kh * kw) matrices. Updates are scaled to the root mean square that
    AdamW's have, so one learning rate serves both. torch.optim.Muon takes matrices only.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                grad = param.grad.reshape(param.shape[0], -1)
                state = self.state[param]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(grad)
                buffer: Tensor = state["momentum"]
                buffer.lerp_(grad, 1 - group["momentum"])
                update = orthogonalize(grad.lerp(buffer, group["momentum"]))
                scale = 0.2 * max(update.shape) ** 0.5
                param.add_(update.view_as(param), alpha=-group["lr"] * scale)


class Optimizers:
    """Muon on the matrices and kernels chosen by name, AdamW on every other parameter.

    Parameters are dealt to one pair of optimisers per worker thread.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        lr: float,
        use_muon: Callable[[str, nn.Parameter], bool],
        workers: int = 2,
    ) -> None:
        self.lr = lr
        self.parts: list[list[torch.optim.Optimizer]] = []
        kinds: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, param in named:
            kinds[use_muon(name, param)].append(param)
        for worker in range(workers):
            matrices, others = (
                sorted(kinds[k], key=nn.Parameter.numel)[worker::workers] for k in (True, False)
            )
            adam = torch.optim.AdamW(others, lr, betas=(0.9, 0.95), weight_decay=0.0)
            self.parts.append([Muon(matrices, lr), adam])

    def step(self, worker: int, factor: float) -> None:
        """Update the parameters dealt to ``worker`` at ``factor`` times the base learning rate."""
        for part in self.parts[worker]:
            for group in part.param_groups:
                group["lr"] = self.lr * factor
            part.step()

    def state_dict(self) -> list[list[dict[str, Any]]]:
        """State of all optimisers."""
        return [[part.state_dict() for part in pair] for pair in self.parts]

    def load_state_dict(self, states: list[list[dict[str, Any]]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        for pair, saved in zip(self.parts, states, strict=True):
            for part, state in zip(pair, saved, strict=True):
                part.load_state_dict(state)


class Replicas(Generic[Model]):
    """Data-parallel training in threads, one CPU core each, with float32 master weights.

    Each worker computes its share of the batch on its own copy of the model. Threads meet twice a step
    and not once an operator, so a core that another process borrows delays a step, not every operator.
    """

    def __init__(
        self,
        master: Model,
        lr: float,
        use_muon: Callable[[str, nn.Parameter], bool],
        dtype: torch.dtype,
        workers: int = 2,
    ) -> None:
        torch.set_num_threads(1)
        self.master = master
        self.workers = workers
        self.optimizers = Optimizers(master.named_parameters(), lr, use_muon, workers)
        self.copies: list[Model] = [copy.deepcopy(master).to(dtype) for _ in range(workers)]
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        self.parameters = list(master.parameters())

    def step(self, loss_of: Callable[[Model], Tensor], factor: float, max_norm: float = 1.0) -> float:
        """One update from the mean over workers of ``loss_of(model copy)``; returns that mean."""

        def backward(worker: int) -> float:
            loss = loss_of(self.copies[worker])
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item()

        losses = list(self.pool.map(backward, range(self.workers)))
        grouped = list(zip(self.parameters, *(list(c.parameters()) for c in self.copies), strict=True))

        def gather(worker: int) -> Tensor:
            squares = torch.zeros(())
            for master, *copies in grouped[worker :: self.workers]:
                grads = [c.grad for c in copies if c.grad is not None]
                if grads:
                    master.grad = torch.stack([g.float() for g in grads]).sum(0) / self.workers
                    squares += master.grad.square().sum()
            return squares

        norm = torch.stack(list(self.pool.map(gather, range(self.workers)))).sum().sqrt()
        shrink = torch.clamp(max_norm / (norm + 1e-6), max=1.0)

        def update(worker: int) -> None:
            for pair in self.optimizers.parts[worker]:
                for group in pair.param_groups:
                    for param in group["params"]:
                        if param.grad is not None:
                            param.grad *= shrink
            self.optimizers.step(worker, factor)

        list(self.pool.map(update, range(self.workers)))
        self.publish()
        return sum(losses) / self.workers

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the master weights to every worker's model and drop the copies' gradients."""
        for model in self.copies:
            for fast, master in zip(model.parameters(), self.parameters, strict=True):
                fast.copy_(master)
                fast.grad = None


class Clock:
    """Training time spent out of a budget, in seconds; it survives a resume.

    The learning rate follows the share of time spent and not a step count, so a run ends on time,
    fully decayed, whatever the machine's speed.
    """

    def __init__(self, minutes: float, spent: float = 0.0) -> None:
        self.budget = minutes * 60
        self.before = spent
        self.start = time.monotonic()

    def spent(self) -> float:
        """Seconds trained so far, earlier sessions included."""
        return self.before + time.monotonic() - self.start

    def fraction(self) -> float:
        """Share of the budget spent, 0 to 1."""
        return min(1.0, self.spent() / self.budget)

    def factor(self, warmup: float = 0.02, flat: float = 0.3) -> float:
        """Learning-rate factor: linear warm-up, flat, then linear decay to zero (shares of the budget)."""
        done = self.fraction()
        return min(1.0, done / warmup + 0.01, (1 - done) / (1 - flat))

    def describe(self) -> str:
        """Minutes spent and left, for a progress line."""
        spent = self.spent()
        return f"{spent / 60:.1f} min, {max(0.0, self.budget - spent) / 60:.1f} min left"
