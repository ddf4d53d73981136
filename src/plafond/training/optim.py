"""Optimizers and learning-rate schedules, by AI Toolkit's names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plafond.errors import JobError
from plafond.job.train import TrainConfig
from plafond.language.said import N_
from plafond.memory.residence import enter, host_memory, label

DOES_NOT_TAKE = N_("{name} does not take {options}: {reason}")

ADAM_EPS = 1e-6
"""AI Toolkit's epsilon for the Adam family."""


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainConfig) -> Optimizer:
    """Build ``train.optimizer`` over `parameters`.

    bfloat16 parameters (full fine-tunes) are updated in float32 and rounded stochastically: their 8-bit mantissa
    would swallow most updates of a usual learning rate.

    Raises:
        JobError: ``optimizer_params`` has something that the optimizer does not take.
    """
    params = list(parameters)
    build = _BUILDERS[settings.optimizer]
    options = dict(settings.optimizer_params)
    try:
        if params[0].dtype == torch.bfloat16:
            if settings.optimizer == "prodigy":
                raise JobError(
                    N_("prodigy needs train.dtype float32 for a full fine-tune"), key="train.optimizer"
                )
            return StochasticRounding(params, lambda group: build(group, settings.lr, options))
        return build(params, settings.lr, options)
    except (TypeError, ValueError) as error:
        raise JobError(
            DOES_NOT_TAKE,
            name=settings.optimizer,
            options=str(options),
            reason=str(error),
            key="train.optimizer_params",
        ) from error


STARTS = frozenset({"p0", "qmap1", "qmap2"})
"""What a fresh state holds that is not zero: Prodigy's first weights, and the code books of eight-bit moments."""


def make_state(optimizer: Optimizer) -> None:
    """Let a fresh optimizer make its state now instead of in its first step, which then finds all its memory taken.

    A step is done on gradients of zero at a learning rate of zero, and what it counted is taken back.
    """
    enter("update")
    parts = _parts(optimizer)
    groups = [group for part in {*parts, optimizer} for group in part.param_groups]
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    for group in groups:
        group.update(lr=0.0, weight_decay=0.0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, before in zip(groups, settings, strict=True):
        group.update(before)
    for part in parts:
        for state in part.state.values():
            for key, value in state.items():
                if key in STARTS:
                    continue
                if isinstance(value, Tensor):
                    value.zero_()
                elif isinstance(value, (int, float)):
                    state[key] = type(value)(0)
    label(state_tensors(optimizer), "optimizer")


def state_tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    """The tensors that an optimizer keeps from step to step."""
    for part in _parts(optimizer):
        for state in part.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state with its tensors on the CPU, fit for `torch.save` and a weights-only load."""
    with host_memory():
        state: dict[str, Any] = _to_cpu(optimizer.state_dict())
    return state


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_cpu(item) for item in value)
    return value


def _parts(optimizer: Optimizer) -> Sequence[Optimizer]:
    return optimizer.inner if isinstance(optimizer, StochasticRounding) else [optimizer]


def _adamw(params: list[nn.Parameter], lr: float, options: dict[str, Any]) -> Optimizer:
    return torch.optim.AdamW(params, lr=lr, **{"eps": ADAM_EPS, **options})


def _adam(params: list[nn.Parameter], lr: float, options: dict[str, Any]) -> Optimizer:
    return torch.optim.Adam(params, lr=lr, **{"eps": ADAM_EPS, **options})


def _bitsandbytes(name: str, **defaults: Any) -> Callable[..., Optimizer]:
    def build(params: list[nn.Parameter], lr: float, options: dict[str, Any]) -> Optimizer:
        import bitsandbytes

        optimizer: Optimizer = getattr(bitsandbytes.optim, name)(params, lr=lr, **{**defaults, **options})
        return optimizer

    return build


def _adafactor(params: list[nn.Parameter], lr: float, options: dict[str, Any]) -> Optimizer:
    from transformers.optimization import Adafactor

    # AI Toolkit's defaults: the learning rate is the one in the file, not derived from the step or the weights.
    defaults = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimizer: Optimizer = Adafactor(params, lr=lr, **{**defaults, **options})
    return optimizer


def _lion(params: list[nn.Parameter], lr: float, options: dict[str, Any]) -> Optimizer:
    from lion_pytorch import Lion

    optimizer: Optimizer = Lion(params, lr=lr, **options)
    return optimizer


def _prodigy(params: list[nn.Parameter], lr: float, options: dict[str, Any]) -> Optimizer:
    from prodigyopt import Prodigy

    # Prodigy finds the step size itself; a usual learning rate in the file would only slow it down.
    optimizer: Optimizer = Prodigy(params, lr=lr if lr >= 0.1 else 1.0, **options)
    return optimizer


_BUILDERS: Mapping[str, Callable[[list[nn.Parameter], float, dict[str, Any]], Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "adamw8bit": _bitsandbytes("AdamW8bit", eps=ADAM_EPS),
    "adam8bit": _bitsandbytes("Adam8bit", eps=ADAM_EPS),
    "lion8bit": _bitsandbytes("Lion8bit"),
    "adafactor": _adafactor,
    "lion": _lion,
    "prodigy": _prodigy,
}


class StochasticRounding(Optimizer):
    """Runs one small optimizer per bfloat16 parameter on a float32 copy that lives only during its update.

    The copy is rounded back up or down with probability proportional to the distance, so that updates smaller than
    a bfloat16 step still act on average. Costs one float32 copy of the largest parameter.
    """

    def __init__(self, params: list[nn.Parameter], build: Callable[[list[nn.Parameter]], Optimizer]):
        self.masters = [nn.Parameter(torch.empty(0, device=p.device)) for p in params]
        self.inner = [build([master]) for master in self.masters]
        super().__init__(params, {"lr": self.inner[0].param_groups[0]["lr"]})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        group = self.param_groups[0]
        for parameter, master, inner in zip(group["params"], self.masters, self.inner, strict=True):
            if parameter.grad is None:
                continue
            master.data = parameter.detach().float()
            master.grad = parameter.grad.float()
            inner.param_groups[0]["lr"] = group["lr"]
            inner.step()
            with torch.no_grad():
                parameter.copy_(round_stochastically(master.detach()))
            master.data, master.grad = torch.empty(0, device=parameter.device), None

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizers' states, in the order of the parameters."""
        return {"inner": [inner.state_dict() for inner in self.inner]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for inner, state in zip(self.inner, state_dict["inner"], strict=True):
            inner.load_state_dict(state)


def round_stochastically(values: Tensor) -> Tensor:
    """Round float32 to bfloat16, up or down at random, so that the expectation is the value itself."""
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint_like(bits, 0, 1 << 16)
    return ((bits + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)


def make_schedule(optimizer: Optimizer, settings: TrainConfig, done: int) -> LRScheduler:
    """Build ``train.lr_scheduler`` and bring it to the state after `done` steps.

    Cosine schedules and linear ones span the job's steps unless ``lr_scheduler_params`` says otherwise.
    """
    from torch.optim import lr_scheduler as schedules

    options = dict(settings.lr_scheduler_params)
    total = settings.steps
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])
    try:
        schedule: LRScheduler
        match settings.lr_scheduler:
            case "constant":
                schedule = schedules.ConstantLR(optimizer, **{"factor": 1.0, "total_iters": total, **options})
            case "linear":
                schedule = schedules.LinearLR(optimizer, **{"total_iters": total, **options})
            case "cosine":
                schedule = schedules.CosineAnnealingLR(optimizer, **{"T_max": total, **options})
            case "cosine_with_restarts":
                schedule = schedules.CosineAnnealingWarmRestarts(optimizer, **{"T_0": total, **options})
            case "step":
                schedule = schedules.StepLR(optimizer, **{"step_size": max(1, total // 3), **options})
            case _:
                warm = int(options.pop("num_warmup_steps", 1000))
                schedule = schedules.LambdaLR(
                    optimizer, lambda step: min(1.0, step / max(1, warm)), **options
                )
    except TypeError as error:
        raise JobError(
            DOES_NOT_TAKE,
            name=settings.lr_scheduler,
            options=str(options),
            reason=str(error),
            key="train.lr_scheduler_params",
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about stepping a schedule before its optimizer
        for _ in range(done):
            schedule.step()
    return schedule
