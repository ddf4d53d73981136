"""The LoRA linear against PEFT, against plain autograd, and in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from plafond.errors import JobError
from plafond.model.lora import LoraLinear, Targets, inject


def pair(
    dtype: torch.dtype = torch.float32, adapter: torch.dtype = torch.float32, alpha: float = 8.0
) -> tuple[LoraLinear, nn.Module]:
    """The same adapted layer as ours and as PEFT's, with a B that is not zero."""
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    base = nn.Linear(48, 80).to(dtype)
    ours = LoraLinear(nn.Linear(48, 80).to(dtype), rank=4, alpha=alpha, dtype=adapter)
    ours.base.load_state_dict(base.state_dict())
    ours.reset(torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours.lora_B.normal_(std=0.1)
    holder = nn.ModuleDict({"layer": base})
    config = LoraConfig(r=4, lora_alpha=alpha, target_modules=["layer"])
    theirs = inject_adapter_in_model(config, holder)["layer"]
    with torch.no_grad():
        theirs.lora_A["default"].weight = nn.Parameter(ours.lora_A.detach().clone())
        theirs.lora_B["default"].weight = nn.Parameter(ours.lora_B.detach().clone())
    return ours, theirs


def run(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    y.float().square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def test_forward_and_backward_equal_peft() -> None:
    ours, theirs = pair()
    x = torch.randn(2, 5, 48)
    y, grad = run(ours, x)
    y_peft, grad_peft = run(theirs, x)
    torch.testing.assert_close(y, y_peft, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, grad_peft, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.lora_A.grad, theirs.lora_A["default"].weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(ours.lora_B.grad, theirs.lora_B["default"].weight.grad, rtol=1e-4, atol=1e-3)
    assert ours.base.weight.grad is None


def test_bfloat16_base_with_float32_adapters_is_close_to_float32() -> None:
    exact, _ = pair()
    ours, _ = pair(torch.bfloat16)
    x = torch.randn(2, 5, 48)
    y, _ = run(ours, x.bfloat16())
    expected, _ = run(exact, x)
    assert y.dtype == torch.bfloat16
    assert ours.lora_A.grad is not None and ours.lora_A.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), expected, rtol=2e-2, atol=3e-2)
    torch.testing.assert_close(ours.lora_B.grad, exact.lora_B.grad, rtol=5e-2, atol=0.5)


def test_gradients_are_right() -> None:
    layer = LoraLinear(nn.Linear(6, 7).double(), rank=2, alpha=3.0, dtype=torch.float64)
    layer.reset(torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.lora_B.normal_()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)

    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"lora_A": a, "lora_B": b}, (x,))

    a = layer.lora_A.detach().clone().requires_grad_()
    b = layer.lora_B.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(f, (x, a, b))


def test_saves_its_input_once_and_never_a_float32_copy() -> None:
    layers = [LoraLinear(nn.Linear(64, 64).bfloat16(), rank=2, alpha=2.0) for _ in range(3)]
    x = torch.randn(100, 64, dtype=torch.bfloat16)
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr() for layer in layers for p in layer.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = [layer(x) for layer in layers]
    assert len(outputs) == 3
    activations = {pointer: size for pointer, size in saved.items() if pointer not in weights}
    # x once (100 × 64 × 2 bytes) and one (100, rank) product per layer
    assert sum(activations.values()) == 100 * 64 * 2 + 3 * 100 * 2 * 2


def test_dropout_acts_in_training_only_and_recomputes_alike() -> None:
    layer = LoraLinear(nn.Linear(32, 32), rank=8, alpha=8.0, dropout=0.5)
    layer.reset(torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.lora_B.normal_()
    x = torch.randn(64, 32)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.train()
    gradients = []
    for recompute in (False, True):
        layer.zero_grad()
        torch.manual_seed(3)
        x_in = x.clone().requires_grad_()
        y = checkpoint(layer, x_in, use_reentrant=False) if recompute else layer(x_in)
        y.square().sum().backward()
        assert layer.lora_A.grad is not None
        gradients.append(layer.lora_A.grad.clone())
    assert torch.equal(gradients[0], gradients[1])


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"q": nn.Linear(8, 8), "norm": nn.Linear(8, 8)}) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block["norm"](block["q"](x))  # type: ignore[index]
        return x


def test_injection_takes_what_the_rule_says() -> None:
    network = inject(Toy(), Targets(blocks=("blocks",)), rank=2, alpha=2.0)
    assert list(network.layers) == ["blocks.0.q", "blocks.0.norm", "blocks.1.q", "blocks.1.norm"]
    network = inject(
        Toy(), Targets(blocks=("blocks",), only=(".q",), ignore=("blocks.1",)), rank=2, alpha=2.0
    )
    assert list(network.layers) == ["blocks.0.q"]


def test_injection_starts_as_the_base_model_and_depends_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    model, x = Toy(), torch.randn(3, 8)
    before = model(x)
    first = inject(model, Targets(blocks=("blocks",)), rank=2, alpha=2.0, seed=5).state_dict()
    assert torch.equal(model(x), before)
    torch.rand(7)
    second = inject(Toy(), Targets(blocks=("blocks",)), rank=2, alpha=2.0, seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        f"blocks.{index}.{layer}.lora_{matrix}"
        for index in (0, 1)
        for layer in ("q", "norm")
        for matrix in "AB"
    ]


def test_nothing_to_train_is_one_sentence() -> None:
    with pytest.raises(JobError) as error:
        inject(Toy(), Targets(blocks=("blocks",), only=("attn9",)), rank=2, alpha=2.0)
    assert str(error.value) == (
        "network.network_kwargs: no layer matches only_if_contains ['attn9'] and ignore_if_contains [];"
        " layer names look like blocks.0.q"
    )


def test_strength_scales_the_addition() -> None:
    model, x = Toy(), torch.randn(3, 8)
    base = model(x)
    network = inject(model, Targets(blocks=("blocks",), only=("blocks.1.norm",)), rank=2, alpha=2.0)
    with torch.no_grad():
        network.layers["blocks.1.norm"].lora_B.normal_()
    full = model(x) - base
    with network.strength(0.5):
        torch.testing.assert_close(model(x) - base, full * 0.5)
    with network.strength(0.0):
        assert torch.equal(model(x), base)
    assert torch.equal(model(x) - base, full)
