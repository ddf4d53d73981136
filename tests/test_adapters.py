"""LoKr and DoRA: against PEFT's layers, in runs, in plans, and in the files that others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from diffusers import FluxPipeline, ZImagePipeline
from PIL import Image
from torch import Tensor, nn

import micro_flux
import micro_zimage
import plafond
from conftest import JobMaker
from family_checks import _difference, _plan
from plafond.errors import JobError
from plafond.model.adapter import Adapter
from plafond.model.dora import DoraLinear
from plafond.model.lokr import LokrLinear, factors
from plafond.model.lora import LoraNetwork, Targets, inject
from plafond.model.native import Entry, lora_from_native, to_native_names
from plafond.model.quantized import QuantizedLinear
from runs import assert_same_weights, folder_of, losses, run


def compare(ours: Adapter, theirs: nn.Module, pairs: dict[str, str]) -> None:
    """The same values, gradients of the input and of what is trained."""
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in ours.tensors().items():
            own = theirs.get_parameter(pairs[name])
            tensor.copy_(torch.randn(tensor.shape, generator=dice) * 0.2 + (own if own.dim() == 1 else 0))
            own.copy_(tensor)
    x = torch.randn(2, 5, ours.in_features, generator=dice)
    found = []
    for layer in (ours, theirs):
        given = x.clone().requires_grad_()
        out = layer(given)
        out.square().sum().backward()
        found.append((out.detach(), given.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-3)
    for name, tensor in ours.tensors().items():
        torch.testing.assert_close(tensor.grad, theirs.get_parameter(pairs[name]).grad, rtol=1e-3, atol=1e-2)


def injected(config: Any, base: nn.Linear) -> nn.Module:
    from peft import inject_adapter_in_model

    return inject_adapter_in_model(config, nn.ModuleDict({"layer": base}))["layer"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("full", [True, False])
def test_lokr_equals_peft(full: bool) -> None:
    from peft import LoKrConfig

    base, like = nn.Linear(48, 80), nn.Linear(48, 80)
    like.load_state_dict(base.state_dict())
    ours = LokrLinear(like, 2, 2.0, factor=4, full=full)
    rank = 100 if full else 2
    config = LoKrConfig(r=rank, alpha=rank, decompose_factor=4, target_modules=["layer"], init_weights=False)
    compare(ours, injected(config, base), {name: f"{name}.default" for name in ours.tensors()})
    ours.reset(torch.Generator())
    x = torch.randn(3, 48)
    assert torch.equal(ours(x), like(x)), "starts as the base layer"


def test_factors_are_those_of_lycoris() -> None:
    from peft.tuners.lokr.layer import factorization

    for size in (*range(1, 130), 360, 3072, 3840, 5120, 18432):
        for factor in (-1, 1, 3, 4, 16, 32):
            assert factors(size, factor) == factorization(size, factor)


def test_gradients_of_the_kronecker_product() -> None:
    layer = LokrLinear(nn.Linear(6, 8).double(), 1, 1.0, full=True, dtype=torch.float64)
    layer.reset(torch.Generator().manual_seed(0))
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    parts = [torch.randn_like(tensor).requires_grad_() for tensor in layer.tensors().values()]

    def f(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(layer.tensors(), values, strict=True)), (x,))

    assert torch.autograd.gradcheck(f, (x, *parts))


@pytest.mark.parametrize("packed", [False, True])
def test_dora_equals_peft(packed: bool) -> None:
    from peft import LoraConfig

    base, like = nn.Linear(48, 80), nn.Linear(48, 80)
    like.load_state_dict(base.state_dict())
    frozen: Any = like
    if packed:
        frozen = QuantizedLinear(like, "int8", torch.device("cpu"))
        base.weight.data = frozen(torch.eye(48)).detach().t() - like.bias.detach()[:, None]
    ours = DoraLinear(frozen, 4, 8.0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["layer"], use_dora=True)
    compare(
        ours,
        injected(config, base),
        {
            "lora_A.weight": "lora_A.default.weight",
            "lora_B.weight": "lora_B.default.weight",
            "lora_magnitude_vector.weight": "lora_magnitude_vector.default.weight",
        },
    )
    x = torch.randn(3, 48)
    # ComfyUI's arithmetic: the sum, over the length of the base weight, times dora_scale
    weight = base.weight + 2.0 * ours.lora_B @ ours.lora_A
    scaled = weight * ours.derived()["dora_scale"] / base.weight.norm(dim=1, keepdim=True)
    torch.testing.assert_close(ours(x), x @ scaled.t() + like.bias, rtol=1e-4, atol=1e-4)
    ours.multiplier = 0.0
    assert torch.equal(ours(x), frozen(x))
    ours.multiplier = 1.0
    ours.reset(torch.Generator())
    torch.testing.assert_close(ours(x), frozen(x))


class Runs:
    """Runs of one kind of adapter on one family."""

    kind: ClassVar[str]
    family: ClassVar[dict[str, Any]]
    overrides: ClassVar[tuple[str, ...]] = ()
    pipeline: ClassVar[Any]
    options: ClassVar[dict[str, Any]]

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        """Write a tiny checkpoint."""
        raise NotImplementedError

    def test_plan_resume_and_file(self, make_job: JobMaker, tmp_path: Path) -> None:
        """The plan is exact, a stopped run goes on bit by bit, diffusers draws our preview from the file."""
        checkpoint = self.make_checkpoint(tmp_path / "checkpoint")
        sections: dict[str, Any] = {
            "network": {"type": self.kind},
            "train": {"disable_sampling": False, "lr": 0.05, "steps": 4, "skip_first_sample": True},
            "sample": {"format": "png", "seed": 3, "width": 96, "height": 64},
            "model": {"name_or_path": str(checkpoint), **self.family},
            "datasets": {"caption_dropout_rate": 0.0},
        }
        whole, halves = make_job("whole", **sections), make_job("halves", **sections)
        plan = _plan(whole, self.overrides)
        loaded = plafond.load_job(whole, overrides=self.overrides)
        (result,) = plafond.train(loaded, device="cpu", ceiling=2**40, recover=False)
        predicted = {
            str(one.bucket): one.summary.allocated_bytes for one in plan.phases if one.phase == "train"
        }
        measured: dict[str, int] = {}
        for row in folder_of(whole).read_metrics():
            measured[row["bucket"]] = max(measured.get(row["bucket"], 0), row["allocated_peak"])
        assert all(0 <= predicted[bucket] - measured[bucket] <= 8192 for bucket in predicted)
        run(halves, overrides=(*self.overrides, "train.steps=2", "train.disable_sampling=true"))
        again = run(halves, overrides=(*self.overrides, "train.disable_sampling=true"))
        assert_same_weights(result.files[-1], again.files[-1])
        assert losses(folder_of(whole)) == losses(folder_of(halves))
        ours = Image.open(folder_of(whole).previews()[4][0])
        pipeline = self.pipeline.from_pretrained(checkpoint)
        pipeline.set_progress_bar_config(disable=True)

        def draw() -> Image.Image:
            return pipeline(  # type: ignore[no-any-return]
                "a photo of sks thing",
                width=96,
                height=64,
                num_inference_steps=2,
                guidance_scale=4.0,
                generator=torch.Generator().manual_seed(3),
                **self.options,
            ).images[0]

        base = draw()
        pipeline.load_lora_weights(result.files[-1])
        assert _difference(ours, draw()) <= 1
        assert _difference(ours, base) > 8
        start = (*self.overrides, "train.steps=1", f"network.pretrained_lora_path={result.files[-1]}")
        run(halves, fresh=True, overrides=(*start, "train.disable_sampling=true"))
        assert losses(folder_of(halves)) != losses(folder_of(whole))[:1], "a run starts from the file"


class TestLokr(Runs):
    kind = "lokr"
    family = {"arch": "zimage", "is_flux": False}  # noqa: RUF012
    overrides = ("network.lokr_factor=4",)
    pipeline = ZImagePipeline
    options = {"negative_prompt": ""}  # noqa: RUF012

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_zimage.make_checkpoint(folder)


class TestDora(Runs):
    kind = "dora"
    family = {"arch": "flux", "is_flux": True}  # noqa: RUF012
    overrides = ("model.layer_offloading=true",)
    pipeline = FluxPipeline
    options = {"max_sequence_length": 32}  # noqa: RUF012

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_flux.make_checkpoint(folder)


def test_native_names_where_layers_are_not_joined() -> None:
    network: LoraNetwork = inject(
        nn.ModuleDict({"to_q": nn.Linear(4, 4)}), Targets(blocks=("",)), rank=1, alpha=1.0, kind=LokrLinear
    )
    state = network.file_tensors()
    table = [Entry(native="blocks.q", diffusers=("to_q",))]
    native = to_native_names(state, table)
    assert native.keys() == {"blocks.q.lokr_w1", "blocks.q.lokr_w2"}
    assert lora_from_native(native, table).keys() == state.keys()
    with pytest.raises(JobError) as error:
        to_native_names(state, [Entry(native="blocks.qkv", diffusers=("to_q", "to_k"))])
    assert str(error.value) == (
        "save.lora_format: native names join to_q with other layers, which only a plain lora can be; expected diffusers"
    )
