"""The tiny Flux base: the checkpoint, its tokenizers and the scenes it was trained on."""

from __future__ import annotations

import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

import plafond.assets
from plafond.assets import scenes
from plafond.assets.tiny_data import captions_of, pack, unpack, with_stray_words
from plafond.assets.tiny_export import LIMIT_BYTES, folder_bytes
from plafond.assets.tiny_tokenizers import build_clip_tokenizer, build_t5_tokenizer, vocabulary_words

CHECKPOINT = Path(plafond.assets.__file__).parent / "tiny-flux"


@pytest.fixture(scope="module")
def pipeline() -> FluxPipeline:
    pipe = FluxPipeline.from_pretrained(CHECKPOINT)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_checkpoint_is_small() -> None:
    assert folder_bytes(CHECKPOINT) <= LIMIT_BYTES


def test_checkpoint_takes_guidance_and_one_dtype(pipeline: FluxPipeline) -> None:
    assert pipeline.transformer.config.guidance_embeds
    parts = (pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2)
    assert {next(part.parameters()).dtype for part in parts} == {torch.float32}


@pytest.mark.parametrize(
    ("caption", "background"),
    [
        ("a yellow circle in the centre, plain blue background", "blue"),
        ("a black square on the left, on a pink background", "pink"),
    ],
)
def test_background_follows_the_caption(pipeline: FluxPipeline, caption: str, background: str) -> None:
    picture = pipeline(
        caption,
        height=128,
        width=128,
        num_inference_steps=12,
        guidance_scale=3.5,
        max_sequence_length=32,
        generator=torch.Generator().manual_seed(0),
    ).images[0]
    pixels = np.asarray(picture).reshape(-1, 3).astype(float)
    names = list(scenes.BACKGROUNDS)
    palette = np.array([scenes.BACKGROUNDS[name] for name in names], float)
    nearest = np.linalg.norm(pixels[:, None] - palette, axis=-1).argmin(1)
    assert names[np.bincount(nearest, minlength=len(names)).argmax()] == background


def test_autoencoder_reconstructs_scenes(pipeline: FluxPipeline) -> None:
    picture = np.asarray(scenes.scene_sample(5_000_000)[0]).astype(np.float32)
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        latents = pipeline.vae.encode(pixels).latent_dist.mean
        again = pipeline.vae.decode(latents).sample.clamp(-1, 1)
    psnr = -10 * torch.log10(((again - pixels) / 2).square().mean())
    assert psnr > 25
    scaled = (latents - pipeline.vae.config.shift_factor) * pipeline.vae.config.scaling_factor
    assert 0.4 < scaled.std() < 2.0


def test_scenes_are_deterministic() -> None:
    first, scene = scenes.scene_sample(7)
    second, again = scenes.scene_sample(7)
    assert scene == again
    assert np.array_equal(np.asarray(first), np.asarray(second))
    assert not np.array_equal(np.asarray(first), np.asarray(scenes.scene_sample(8)[0]))
    assert captions_of("scene", 7) == captions_of("scene", 7)


def test_every_scene_word_reaches_a_picture() -> None:
    seen = [scenes.sample_scene(random.Random(seed)) for seed in range(3000)]
    assert {s.background for s in seen} == set(scenes.BACKGROUNDS)
    assert {s.pattern for s in seen} == set(scenes.PATTERNS)
    objects = [o for s in seen for o in s.objects]
    assert {o.kind for o in objects} == set(scenes.SHAPES)
    assert {o.colour for o in objects} == set(scenes.COLOURS)
    assert {o.place for o in objects} == set(scenes.PLACES)


def test_held_out_combinations_are_never_sampled() -> None:
    for seed in range(5000):
        scene = scenes.sample_scene(random.Random(seed))
        assert not any(scenes.is_held_out(item, scene.background) for item in scene.objects)


def test_held_out_scenes_are_distinct_and_held_out() -> None:
    found = scenes.held_out_scenes(40)
    assert len({(s.objects, s.background) for s in found}) == 40
    assert all(scenes.is_held_out(s.objects[0], s.background) for s in found)
    assert found == scenes.held_out_scenes(40)
    with pytest.raises(ValueError, match="held out"):
        scenes.held_out_scenes(100_000)


@pytest.mark.parametrize("photo", scenes.PHOTOS, ids=lambda p: p.name)
def test_photographs_exist_and_crop(photo: scenes.Photo) -> None:
    picture = scenes.render_photo(photo, random.Random(0))
    assert picture.size == (128, 128)
    assert np.asarray(picture).std() > 5


def test_base_never_saw_the_demo_subject() -> None:
    texts = " ".join(text for photo in scenes.PHOTOS for text in photo.captions)
    assert "chelsea" not in {photo.name for photo in scenes.PHOTOS}
    assert "cat" not in texts.split()


TEXTS = ("chelsea", "ünïcode 猫 🐱 zürich!", "a\u0301 b", "مرحبا", "x" * 20, "\u2603\ufe0f 1/2 #tag", "")


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizers_keep_any_text(text: str) -> None:
    wanted = unicodedata.normalize("NFC", text).lower()
    t5, clip = build_t5_tokenizer(), build_clip_tokenizer()
    ids = t5(text).input_ids
    assert t5.unk_token_id not in ids
    assert t5.decode(ids, skip_special_tokens=True) == wanted
    # CLIP's own pre-tokenizer drops white space; nothing else may be lost.
    back = clip.decode(clip(text).input_ids, skip_special_tokens=True)
    assert "".join(back.split()) == "".join(wanted.split())


def test_known_words_are_single_tokens() -> None:
    t5, clip = build_t5_tokenizer(), build_clip_tokenizer()
    for word in vocabulary_words():
        assert len(t5(word).input_ids) == 2, word
        assert len(clip(word).input_ids) == 3, word


def test_saved_tokenizers_match_the_built_ones(pipeline: FluxPipeline) -> None:
    for text in (*TEXTS, "a red circle on the left, blue striped background"):
        assert pipeline.tokenizer(text).input_ids == build_clip_tokenizer()(text).input_ids
        assert pipeline.tokenizer_2(text).input_ids == build_t5_tokenizer()(text).input_ids
    assert pipeline.tokenizer.model_max_length == pipeline.tokenizer_2.model_max_length == 32


def test_captions_fit_the_tokenizers() -> None:
    t5, clip = build_t5_tokenizer(), build_clip_tokenizer()
    for seed in range(300):
        rng = random.Random(seed)
        text = scenes.caption(scenes.sample_scene(rng), rng)
        assert max(len(t5(text).input_ids), len(clip(text).input_ids)) <= 32


def test_stray_words_keep_the_caption_in_order() -> None:
    words = ["a", "red", "circle", "on", "the", "left"]
    for seed in range(50):
        mixed = with_stray_words(" ".join(words), random.Random(seed)).split(" ")
        assert 1 <= len(mixed) - len(words) <= 2
        places = [0]
        for word in words:
            places.append(mixed.index(word, places[-1]) + 1)
        assert all(a < b for a, b in pairwise(places))


def test_packing_is_the_pipelines() -> None:
    latents = torch.randn(2, 16, 16, 16)
    tokens = pack(latents)
    assert torch.equal(tokens, FluxPipeline._pack_latents(latents, 2, 16, 16, 16))
    assert torch.equal(unpack(tokens), latents)
