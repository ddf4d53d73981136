"""The transformer phases: flow matching from captions, then guidance distillation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from PIL import Image
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from plafond.assets.tiny_attention import speed_up
from plafond.assets.tiny_data import Batch, TrainingSet, token_ids, unpack
from plafond.assets.tiny_optim import Clock, Replicas
from plafond.assets.tiny_tokenizers import CLIP_LENGTH, T5_LENGTH, build_clip_tokenizer, build_t5_tokenizer

TEXT_WIDTH = 128
IMAGE_TOKENS = 64
SHARE = 32  # samples per worker and step; there are two workers
GUIDANCE_RANGE = (1.0, 5.0)
SNAPSHOT_SECONDS = 300.0

SHEET_CAPTIONS: tuple[str, ...] = (
    "a red circle on the left, blue striped background",
    "a yellow star in the centre, on a black background",
    "a white ring at the top, green checked background",
    "a blue square on the right, plain orange background",
    "a green triangle at the bottom, on a white background",
    "a purple cross in the top left corner, pink dotted background",
    "an orange star on the right side, purple gradient background",
    "a black triangle in the middle, yellow cloudy background",
    "a red square on the left and a white circle on the right, black background",
    "a pink ring near the top and a blue cross near the bottom, gray background",
    "a photo of an astronaut",
    "a photo of a cup of coffee",
    "a photo of a rocket",
    "a photo of a temple",
    "a photo of a flower",
    "a photo of a man with a camera",
)


class TinyFlux(nn.Module):
    """The trained parts of the pipeline: the Flux transformer and both text encoders."""

    def __init__(self) -> None:
        super().__init__()
        clip, t5 = build_clip_tokenizer(), build_t5_tokenizer()
        self.transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=64,
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=64,
            num_attention_heads=4,
            joint_attention_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
            guidance_embeds=True,
            axes_dims_rope=(16, 24, 24),
        )
        clip_config = CLIPTextConfig(
            vocab_size=len(clip),
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            projection_dim=TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CLIP_LENGTH,
            bos_token_id=clip.bos_token_id,
            eos_token_id=clip.eos_token_id,
            pad_token_id=clip.pad_token_id,
            attn_implementation="eager",
        )
        self.clip = CLIPTextModel(clip_config)
        self.t5 = T5EncoderModel(
            T5Config(
                vocab_size=len(t5),
                d_model=TEXT_WIDTH,
                d_kv=32,
                d_ff=2 * TEXT_WIDTH,
                num_layers=2,
                num_heads=4,
                relative_attention_num_buckets=32,
                dropout_rate=0.0,
                feed_forward_proj="gated-gelu",
            )
        )
        for name, module in self.transformer.named_modules():
            # Zero modulation makes every block start as the identity (adaLN-zero).
            if isinstance(module, nn.Linear) and (name.endswith(".linear") or name == "proj_out"):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)
        self.register_buffer("text_positions", torch.zeros(T5_LENGTH, 3), persistent=False)
        side = round(IMAGE_TOKENS**0.5)
        grid = torch.cartesian_prod(torch.zeros(1), torch.arange(side).float(), torch.arange(side).float())
        self.register_buffer("image_positions", grid, persistent=False)

    def text(self, clip_ids: Tensor, t5_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled CLIP vector (N, 128) and T5 states (N, 32, 128), as FluxPipeline computes them."""
        return self.clip(clip_ids).pooler_output, self.t5(t5_ids)[0]

    def forward(
        self, noisy: Tensor, sigma: Tensor, guidance: Tensor, pooled: Tensor, states: Tensor
    ) -> Tensor:
        """Velocity (N, 64, 64) at noise level ``sigma`` (N,), with embedded ``guidance`` (N,)."""
        velocity: Tensor = self.transformer(
            hidden_states=noisy,
            timestep=sigma,
            guidance=guidance,
            pooled_projections=pooled,
            encoder_hidden_states=states,
            txt_ids=self.text_positions,
            img_ids=self.image_positions,
            return_dict=False,
        )[0]
        return velocity


def _use_muon(name: str, param: nn.Parameter) -> bool:
    blocks = "transformer_blocks" in name or ".layers." in name or ".block." in name
    return param.ndim == 2 and blocks and not name.endswith(".linear.weight") and "bias" not in name


class Trainer:
    """Threaded bfloat16 training of a TinyFlux, with resumable snapshots and sample sheets."""

    def __init__(self, model: TinyFlux, snapshot: Path, minutes: float, lr: float) -> None:
        self.snapshot = snapshot
        spent, self.step = 0.0, 0
        state: dict[str, Any] | None = torch.load(snapshot) if snapshot.exists() else None
        if state is not None:
            model.load_state_dict(state["model"])
            spent, self.step = state["spent"], state["step"]
        self.replicas = Replicas(model, lr, _use_muon, torch.bfloat16)
        if state is not None:
            self.replicas.optimizers.load_state_dict(state["optimizers"])
        for fast in self.replicas.copies:
            speed_up(fast.transformer)
        self.clock = Clock(minutes, spent)

    def save(self) -> None:
        """Write the snapshot; the previous one is replaced only once the new one is whole."""
        state = {
            "model": self.replicas.master.state_dict(),
            "optimizers": self.replicas.optimizers.state_dict(),
            "spent": self.clock.spent(),
            "step": self.step,
        }
        part = self.snapshot.with_suffix(".tmp")
        torch.save(state, part)
        part.rename(self.snapshot)

    def run(self, loss_of: Callable[[TinyFlux], Tensor], sheet: Callable[[Path, TinyFlux], None]) -> None:
        """Train until the clock runs out, with a snapshot and a sample sheet every few minutes."""
        saved, meter, begin = self.clock.spent(), 0.0, self.step
        while self.clock.fraction() < 1.0:
            loss = self.replicas.step(loss_of, self.clock.factor())
            self.step += 1
            meter += (loss - meter) / min(self.step - begin, 100)
            if self.step % 50 == 0:
                print(
                    f"{self.snapshot.stem} step {self.step}: loss {meter:.4f}, {self.clock.describe()}",
                    flush=True,
                )
            if self.clock.spent() - saved > SNAPSHOT_SECONDS:
                saved = self.clock.spent()
                self.save()
                name = f"{self.snapshot.stem}_{self.step:06d}.png"
                sheet(self.snapshot.with_name(name), self.replicas.copies[0])
        self.save()
        sheet(self.snapshot.with_name(f"{self.snapshot.stem}_final.png"), self.replicas.copies[0])


def noised(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy latents, noise levels and true velocities of ``batch``, in bfloat16.

    Levels are logit-normal, a tenth of them uniform so that both ends are seen too.
    """
    count = len(batch.latents)
    sigma = torch.sigmoid(torch.randn(count) + 0.2)
    sigma = torch.where(torch.rand(count) < 0.1, torch.rand(count), sigma).bfloat16()
    clean = batch.latents.float()
    noise = torch.randn_like(clean)
    level = sigma.float()[:, None, None]
    return ((1 - level) * clean + level * noise).bfloat16(), sigma, noise - clean


@torch.no_grad()
def sample(
    model: TinyFlux, captions: list[str], steps: int, guidance: float, true_cfg: bool, seed: int = 0
) -> Tensor:
    """Packed latents (N, 64, 64) drawn by Euler steps, with real (two-pass) or embedded guidance."""
    clip, t5 = build_clip_tokenizer(), build_t5_tokenizer()

    def text(texts: list[str]) -> tuple[Tensor, Tensor]:
        return model.text(token_ids(clip, texts, CLIP_LENGTH), token_ids(t5, texts, T5_LENGTH))

    dtype = next(model.parameters()).dtype
    generator = torch.Generator().manual_seed(seed)
    count = len(captions)
    x = torch.randn(count, IMAGE_TOKENS, 64, generator=generator)
    given, nothing = text(captions), text([""] * count)
    embedded = torch.full((count,), 1.0 if true_cfg else guidance, dtype=dtype)
    sigmas = torch.linspace(1, 0, steps + 1)
    for sigma, following in pairwise(sigmas):
        level = sigma.expand(count).to(dtype)
        velocity = model(x.to(dtype), level, embedded, *given).float()
        if true_cfg:
            plain = model(x.to(dtype), level, embedded, *nothing).float()
            velocity = plain + guidance * (velocity - plain)
        x = x + (following - sigma) * velocity
    return x


@torch.no_grad()
def write_sheet(
    path: Path, model: TinyFlux, vae: AutoencoderKL, data: TrainingSet, guidance: float, true_cfg: bool
) -> None:
    """Draw SHEET_CAPTIONS as a 4-row picture at ``path``."""
    tokens = sample(model, list(SHEET_CAPTIONS), 20, guidance, true_cfg)
    pixels = vae.decode(unpack(tokens) / data.scale + data.shift).sample
    images = ((pixels.clamp(-1, 1) + 1) * 127.5).byte().permute(0, 2, 3, 1).numpy()
    sheet = Image.new("RGB", (4 * 132, 4 * 132))
    for k, image in enumerate(images):
        sheet.paste(Image.fromarray(image), (k % 4 * 132, k // 4 * 132))
    sheet.save(path)


def train_transformer(work: Path, vae: AutoencoderKL, minutes: float, lr: float = 1.5e-3) -> None:
    """Flow matching on the captioned pictures for ``minutes``; snapshots in ``work/transformer.pt``."""
    torch.manual_seed(1)
    data = TrainingSet(work, vae)
    trainer = Trainer(TinyFlux(), work / "transformer.pt", minutes, lr)
    ones = torch.ones(SHARE, dtype=torch.bfloat16)

    def loss_of(model: TinyFlux) -> Tensor:
        batch = data.batch(SHARE)
        noisy, sigma, velocity = noised(batch)
        text = model.text(*batch.ids())
        error: Tensor = model(noisy, sigma, ones, *text).float() - velocity
        return error.square().mean()

    trainer.run(loss_of, lambda path, model: write_sheet(path, model, vae, data, 3.0, True))


def distil_guidance(work: Path, vae: AutoencoderKL, minutes: float, lr: float = 5e-4) -> None:
    """Teach the model to give, in one pass, the velocity that two passes of classifier-free guidance give."""
    torch.manual_seed(2)
    data = TrainingSet(work, vae)
    student = TinyFlux()
    student.load_state_dict(torch.load(work / "transformer.pt")["model"])
    teacher = copy.deepcopy(student).bfloat16().requires_grad_(False)
    speed_up(teacher.transformer)
    trainer = Trainer(student, work / "distil.pt", minutes, lr)
    low, high = GUIDANCE_RANGE
    # Caption and empty caption go through the teacher in one batch.
    ones = torch.ones(2 * SHARE, dtype=torch.bfloat16)

    def loss_of(model: TinyFlux) -> Tensor:
        batch = data.batch(SHARE, empty_share=0.05)
        noisy, sigma, _ = noised(batch)
        guidance = (low + (high - low) * torch.rand(SHARE)).bfloat16()
        with torch.no_grad():
            both = (
                torch.cat([ids, e.expand(SHARE, -1)]) for ids, e in zip(batch.ids(), data.empty, strict=True)
            )
            velocity = teacher(noisy.repeat(2, 1, 1), sigma.repeat(2), ones, *teacher.text(*both)).float()
            given, plain = velocity.chunk(2)
            target = plain + guidance.float()[:, None, None] * (given - plain)
        error: Tensor = model(noisy, sigma, guidance, *model.text(*batch.ids())).float() - target
        return error.square().mean()

    trainer.run(loss_of, lambda path, model: write_sheet(path, model, vae, data, 3.5, False))
