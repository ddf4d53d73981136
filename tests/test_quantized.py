"""Packed weights: their numbers, their bytes, their gradients, and loading them one layer at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import JobMaker
from job_files import change, load, write
from micro_flux import make_transformer
from plafond.activations.blocks import plan_blocks
from plafond.activations.levels import KEEP, RECOMPUTE
from plafond.errors import JobError
from plafond.families import family_for
from plafond.job.model import ModelConfig
from plafond.job.qtypes import EXACT, NEAREST, format_of
from plafond.job.reading import load_job
from plafond.memory.kernels import Target
from plafond.memory.residence import counting, move_in
from plafond.memory.virtual import VirtualGpu
from plafond.model.lora import LoraLinear, Targets, inject
from plafond.model.packing import FORMATS, GROUP, dense, pack
from plafond.model.quantized import QuantizedLinear, in_layers, quantize, weight_of
from plafond.training.base import quantize_transformer
from runs import assert_same_weights, folder_of, losses
from test_memory_virtual import plan_of, run, runs_as_planned

CPU = torch.device("cpu")
FLUX = family_for("flux")
QUANTIZED = {"quantize": True}
ERRORS = {
    "float8": 0.027,
    "int8": 0.009,
    "nf4": 0.093,
    **{"uint2": 0.46, "uint3": 0.20, "uint4": 0.091, "uint5": 0.045, "uint6": 0.022, "uint7": 0.011},
    "uint8": 0.0056,
}
"""Root mean square of the error over that of normally distributed weights, at most."""
ALL = pytest.mark.parametrize("name", list(FORMATS))
SHAPES = [(64, 128), (37, 200), (3, 1), (1, 65), (96, 63)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_format_has_a_bound() -> None:
    assert ERRORS.keys() == FORMATS.keys()


@ALL
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_come_back(name: str, shape: tuple[int, int]) -> None:
    weight = drawn(*shape) * 0.02
    packed, layout = pack(weight, name)
    exact, half = dense(packed, layout, torch.float32), dense(packed, layout, torch.bfloat16)
    assert exact.shape == half.shape == weight.shape
    bound = ERRORS[name] * (1 if weight.numel() > 4096 else 1.3)
    assert (exact - weight).norm() <= bound * weight.norm()
    # in bfloat16 nothing is lost but the last bit of each number
    assert torch.all((half.float() - exact).abs() <= exact.abs() * 2**-7 + exact.abs().max() * 2**-9)


@ALL
def test_weights_that_are_all_alike_come_back(name: str) -> None:
    for value in (0.0, 1.0, -3.0):
        packed, layout = pack(torch.full((4, 64), value), name)
        torch.testing.assert_close(
            dense(packed, layout, torch.float32), torch.full((4, 64), value), rtol=0.04, atol=0
        )


@ALL
def test_bytes_are_what_the_table_says(name: str) -> None:
    rows, columns = 32, 4 * GROUP
    packed, _ = pack(drawn(rows, columns), name)
    size = sum(tensor.numel() * tensor.element_size() for tensor in packed)
    besides = {"float8": 2 * rows, "int8": 2 * rows, "nf4": 256 * 2 * 4}.get(name, 0)
    assert size - besides == FORMATS[name].bytes_per_parameter * rows * columns


@ALL
def test_pieces_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn(50, 100)
    packed, layout = pack(weight, name)
    whole = dense(packed, layout, torch.float32)
    monkeypatch.setattr("plafond.model.packing.PIECE", 700)
    again, _ = pack(weight, name)
    assert all(torch.equal(one, two) for one, two in zip(packed, again, strict=True))
    assert torch.equal(dense(again, layout, torch.float32), whole)


@ALL
def test_without_data_it_is_the_same(name: str) -> None:
    real, layout = pack(drawn(5, 70), name)
    blank, same = pack(torch.empty(5, 70, device="meta"), name)
    assert layout == same
    assert [(t.shape, t.dtype) for t in real] == [(t.shape, t.dtype) for t in blank]
    assert dense(blank, layout, torch.bfloat16).shape == (5, 70)


def test_nf4_is_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = drawn(16, 128)
    packed, state = functional.quantize_nf4(weight, blocksize=64)
    theirs = functional.dequantize_nf4(packed, state)
    found, layout = pack(weight, "nf4")
    # the scales are rounded here, which moves numbers that lie between two codes
    assert (found[0].flatten() == packed.flatten()).float().mean() > 0.98
    close = torch.isclose(dense(found, layout, torch.float32), theirs, rtol=2**-8, atol=1e-6)
    assert close.float().mean() > 0.98


# ---------------------------------------------------------------------------------------------------- layer


def layer(name: str, inside: int = 48, out: int = 80, dtype: torch.dtype = torch.float32) -> QuantizedLinear:
    torch.manual_seed(0)
    return QuantizedLinear(nn.Linear(inside, out).to(dtype), name, CPU)


def reference(of: QuantizedLinear) -> nn.Linear:
    """An ordinary layer with the weights that `of` stands for."""
    linear = nn.Linear(of.in_features, of.out_features, bias=of.bias is not None, dtype=of.weight.dtype)
    with torch.no_grad():
        linear.weight.copy_(dense(*weight_of(of), of.weight.dtype))
        if of.bias is not None:
            linear.bias.copy_(of.bias)
    return linear.requires_grad_(False)


def passes(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = module(x)
    y.float().square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@ALL
@pytest.mark.parametrize("sizes", [(48, 80), (65, 3), (128, 64)], ids=str)
def test_it_computes_what_the_dequantised_layer_does(name: str, sizes: tuple[int, int]) -> None:
    ours = layer(name, *sizes)
    x = drawn(2, 5, sizes[0])
    for found, expected in zip(passes(ours, x), passes(reference(ours), x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@ALL
def test_a_lora_on_it_learns_as_on_the_dequantised_layer(name: str) -> None:
    ours = layer(name, 70, 50)
    adapted = [LoraLinear(base, rank=4, alpha=8.0) for base in (ours, reference(ours))]
    for one in adapted:
        one.reset(torch.Generator().manual_seed(1))
        with torch.no_grad():
            one.lora_B.copy_(drawn(*one.lora_B.shape, seed=2) * 0.1)
    x = drawn(2, 5, 70)
    for found, expected in zip(*(passes(one, x) for one in adapted), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    for matrix in ("lora_A", "lora_B"):
        found, expected = (getattr(one, matrix).grad for one in adapted)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_gradients_are_right() -> None:
    assert torch.autograd.gradcheck(
        layer("uint4", 6, 7, torch.float64), torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    )


@ALL
@pytest.mark.parametrize("adapted", [False, True])
def test_nothing_dense_outlives_a_pass(name: str, adapted: bool) -> None:
    """After the forward pass there are the output and, with an adapter, ``A x``; the input was there before."""
    base = layer(name, 256, 512, torch.bfloat16)
    module = LoraLinear(base, rank=2, alpha=2.0) if adapted else base
    x = drawn(8, 256).bfloat16().requires_grad_()
    dense_size = 256 * 512 * 2
    with counting(VirtualGpu(2**30, granule=1)) as gpu:
        y = module(x)
        assert gpu.live == y.numel() * 2 + (8 * 2 * 2 if adapted else 0)
        assert dense_size <= gpu.peak - gpu.live <= 3.1 * dense_size  # this layer is one piece
        y.sum().backward()
        del y
        gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
        assert x.grad is not None
        assert gpu.live == x.grad.nbytes + gradients


def test_its_weight_tells_dtype_and_device() -> None:
    ours = layer("uint3", dtype=torch.bfloat16)
    assert ours.weight.dtype == torch.bfloat16 and ours.weight.device == CPU and ours.weight.numel() == 0
    assert not any(parameter.requires_grad for parameter in ours.parameters())


# ---------------------------------------------------------------------------------------------------- models


def model_section(folder: Path, lines: str) -> ModelConfig:
    (process,) = load(folder, change("quantize: false", f"quantize: true\n        {lines}")).processes
    return process.model


def names(model: nn.Module, kind: type[nn.Module]) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, kind)}


def test_blocks_are_packed_and_what_is_outside_stays(tmp_path: Path) -> None:
    model = make_transformer()
    section = model_section(tmp_path, "quantize_kwargs: {exclude: ['*.norm1.*', '*to_out*']}")
    quantize_transformer(model, FLUX, section, CPU)
    packed, plain = names(model, QuantizedLinear), names(model, nn.Linear)
    assert {"transformer_blocks.0.attn.to_q", "transformer_blocks.0.norm1_context.linear"} <= packed
    assert {"single_transformer_blocks.1.proj_out", "single_transformer_blocks.1.norm.linear"} <= packed
    assert {"x_embedder", "context_embedder", "proj_out", "norm_out.linear"} <= plain
    assert {"transformer_blocks.0.norm1.linear", "transformer_blocks.0.attn.to_out.0"} <= plain
    assert all("transformer_blocks" in name for name in packed)


def test_text_encoders_keep_embeddings_and_projections() -> None:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, projection_dim=16, num_hidden_layers=2
    )
    model = CLIPTextModelWithProjection(config).requires_grad_(False)
    packed = quantize(model, "int8", CPU, only=in_layers(model))
    assert len(packed) == 2 * 6 and names(model, nn.Linear) == {"text_projection"}
    with torch.no_grad():
        assert model(torch.ones(1, 5, dtype=torch.int64)).text_embeds.shape == (1, 16)


@pytest.mark.parametrize("name", ["float8", "uint3", "nf4"])
def test_blocks_that_recompute_have_the_same_gradients(name: str) -> None:
    """The list of a block's operations holds packed weights like any others."""
    torch.manual_seed(0)
    model = make_transformer().requires_grad_(False)
    quantize(model, name, CPU, only=in_layers(model))
    network = inject(model, Targets(blocks=("transformer_blocks",)), rank=4, alpha=4.0)
    for index, adapter in enumerate(network.layers.values()):
        adapter.lora_B.data.copy_(drawn(*adapter.lora_B.shape, seed=index) * 0.05)
    model.train()

    def gradients() -> list[Tensor]:
        for parameter in network.parameters():
            parameter.grad = None
        out = model(
            hidden_states=drawn(1, 16, 64),
            timestep=torch.tensor([0.5]),
            guidance=torch.ones(1),
            pooled_projections=drawn(1, 32),
            encoder_hidden_states=drawn(1, 6, 32),
            txt_ids=torch.zeros(6, 3),
            img_ids=torch.zeros(16, 3),
            return_dict=False,
        )[0]
        out.square().mean().backward()
        return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]

    plain = gradients()
    blocks = [block for group in plan_blocks(model, Target("cpu")).values() for block in group]
    for level in (KEEP, RECOMPUTE):
        for block in blocks:
            block.level = level
        found = gradients()
        assert len(found) == len(plain) > 0
        assert all(torch.equal(one, two) for one, two in zip(found, plain, strict=True))
        assert all(block.learnt is not None for block in blocks)


@pytest.mark.parametrize("name", ["float8", "int8", "nf4", "uint4", "uint7"])
def test_loading_takes_the_packed_model_and_one_layer(name: str) -> None:
    """What a virtual GPU holds at most, with layers that are several times a piece."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList(nn.Linear(512, 512, dtype=torch.bfloat16) for _ in range(12))}
    )
    with pytest.MonkeyPatch.context() as patch, counting(VirtualGpu(2**30)) as gpu:
        patch.setattr("plafond.model.packing.PIECE", 2**13)
        quantize(model, name, CPU, only=in_layers(model))
        move_in(model, CPU)
        most = gpu.peak
        one_layer, piece = 512 * 512 * 2, 4 * 2**13
        assert most <= gpu.live + one_layer + 5 * piece
        assert gpu.live <= 12 * (512 * 512 * (FORMATS[name].bytes_per_parameter + 0.02) + 4096)


def test_loading_is_the_same_from_a_folder_and_from_a_file(
    make_job: JobMaker, micro_checkpoint: Path
) -> None:
    file = next((micro_checkpoint / "transformer").glob("*.safetensors"))
    whole = make_job("whole", model=QUANTIZED)
    single = make_job(
        "single", model={**QUANTIZED, "name_or_path": str(file), "extras_name_or_path": str(micro_checkpoint)}
    )
    assert losses(run(whole, None)) == losses(run(single, None))
    assert_same_weights(folder_of(whole).final, folder_of(single).final)


@pytest.mark.parametrize("qtype", ["qfloat8", "int8", "nf4", "uint4", "uint3"])
@pytest.mark.parametrize(
    "overrides",
    [
        ("train.gradient_checkpointing=false", "train.disable_sampling=false"),
        (
            "train.gradient_checkpointing=true",
            "train.cache_text_embeddings=false",
            "train.dtype=bf16",
        ),
    ],
    ids=["keep", "live text"],
)
def test_the_plan_is_exact(make_job: JobMaker, qtype: str, overrides: tuple[str, ...]) -> None:
    runs_as_planned(
        make_job,
        (
            *overrides,
            "model.quantize=true",
            "model.quantize_te=true",
            f"model.qtype={qtype}",
            f"model.qtype_te={qtype}",
        ),
    )


def test_a_plan_has_smaller_weights(make_job: JobMaker) -> None:
    job = make_job(train={"dtype": "bf16"})

    def packed(*overrides: str) -> int:
        phase = next(phase for phase in plan_of(job, 2**40, *overrides).phases if phase.phase == "save")
        return phase.summary.kinds["weights"]

    plain = packed()
    assert packed("model.quantize=true") < 0.8 * plain
    assert packed("model.quantize=true", "model.qtype=uint2") < packed("model.quantize=true")


# ---------------------------------------------------------------------------------------------------- jobs


def test_the_names_of_formats() -> None:
    assert set(EXACT.values()) | set(NEAREST.values()) <= FORMATS.keys()
    expected = {
        **{"qfloat8": "float8", "float8": "float8", "qint8": "int8", "int8": "int8", "nf4": "nf4"},
        **{"qint4": "uint4", "qint2": "uint2", "uint2": "uint2", "uint8": "uint8"},
        **{"uint3|owner/name/file.safetensors": "uint3", "": None, "convrot8": "int8", "orbit3": "uint3"},
    }
    assert {name: format_of(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        ("qtype: qfloat8", None),
        ("low_vram: true", None),
        (
            "qtype: convrot4",
            "line 27: model.qtype: convrot4 is a number format of AI Toolkit that plafond does not have; the"
            " weights are stored as uint4, which has the same width",
        ),
        (
            "qtype: uint3|a/b/c.safetensors",
            "line 27: model.qtype: the accuracy recovery adapter is known to AI Toolkit, not used by plafond yet;"
            " the weights are stored as uint3 without it",
        ),
        (
            "quantize_kwargs: {exclude: ['*a*'], more: 1}",
            "line 27: model.quantize_kwargs.more: plafond reads only exclude here",
        ),
    ],
)
def test_what_has_no_equivalent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, warning: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    text = change("quantize: false", f"quantize: true\n        {lines}")
    write(tmp_path, text)
    assert load_job("job.yaml").warnings == (() if warning is None else (f"job.yaml, {warning}",))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            "quantize: true\n        qtype: unit4",
            'line 27: model.qtype: expected a number format such as qfloat8, uint4 or nf4, found "unit4"; did you'
            " mean uint4?",
        ),
        (
            "quantize: true\n        quantize_kwargs: {exclude: norm}",
            'line 27: model.quantize_kwargs.exclude: expected a list of texts, found "norm"',
        ),
    ],
)
def test_errors_name_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, change("quantize: false", lines))
    with pytest.raises(JobError) as caught:
        load_job("job.yaml")
    assert str(caught.value) == f"job.yaml, {error}"


def test_a_full_fine_tune_cannot_be_quantised(make_job: JobMaker) -> None:
    with pytest.raises(JobError, match=r"model\.quantize: quantised weights are frozen, and a job without a"):
        load_job(make_job(network=None, model=QUANTIZED))
    load_job(make_job(network=None, model={"quantize_te": True}))


def test_a_run_goes_on_with_another_format(make_job: JobMaker, capfd: pytest.CaptureFixture[str]) -> None:
    job = make_job(model=QUANTIZED, train={"steps": 4})
    run(job, None)
    folder = run(job, None, "model.qtype=uint8", "train.steps=6", fresh=False)
    assert [step for step, _ in losses(folder)] == [1, 2, 3, 4, 5, 6]
    said = capfd.readouterr().err.replace("\n", " ")
    assert "the base model was float8 when this run was saved and is uint8 now" in said


def test_a_quantised_run_learns_like_a_plain_one(make_job: JobMaker) -> None:
    """The same draws, so losses differ by the weights' rounding alone; previews are drawn, too."""
    plain, packed = make_job("plain"), make_job("packed", model=QUANTIZED, train={"disable_sampling": False})
    one, two = run(plain, None), run(packed, None)
    assert two.previews()
    for (_, first), (_, second) in zip(losses(one), losses(two), strict=True):
        assert first != second and abs(first - second) <= 0.05 * first
