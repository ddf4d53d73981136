"""The whole way from a folder to batches, as the trainer walks it."""

import torch
from PIL import Image

from plafond.data.batches import build_items, plan_batches
from plafond.data.cache import cache_folder
from plafond.data.folder import scan
from plafond.data.latents import cache_latents
from plafond.data.text import FOLDER, cache_text
from plafond.job.dataset import DatasetConfig


def prepare(root, seed=3):
    datasets = [
        DatasetConfig(
            folder_path=str(root / "subject"),
            resolution=(64, 96),
            flip_x=True,
            trigger_word="ohwx",
            shuffle_tokens=True,
            caption_dropout_rate=0.1,
            cache_latents_to_disk=True,
        ),
        DatasetConfig(folder_path=str(root / "reg"), resolution=(64,), is_reg=True, batch_size=1),
    ]
    scans = [scan(config, index) for index, config in enumerate(datasets)]
    items = build_items(scans, 16)
    store = cache_latents(items, lambda pixels: pixels[:, :, ::8, ::8], signature={"vae": "tiny"})
    plan, regularisation = plan_batches(store.surviving(items), 2, seed)
    prompts = plan.prompts(2) + regularisation.prompts(2)
    folder = cache_folder(scans[0].pictures[0].root, FOLDER)
    texts = cache_text(
        prompts, lambda ps: [{"x": torch.ones(len(p))} for p in ps], signature={}, folder=folder
    )
    problems = [problem for found in scans for problem in found.problems] + list(store.problems)

    def step(index):
        batch = plan.batch_at(index)
        latents = torch.stack([store[item] for item in batch.items])
        return batch, latents, [texts[prompt]["x"] for prompt in plan.captions(batch, 2)]

    return step, regularisation, problems


def test_from_a_folder_to_batches(tmp_path):
    sizes = [(100, 80), (80, 100), (64, 64), (300, 200), (200, 300)]
    for folder, count in (("subject", 5), ("reg", 2)):
        (tmp_path / folder).mkdir()
        for number, size in enumerate(sizes[:count]):
            Image.effect_noise(size, 80).save(tmp_path / folder / f"{number}.jpg")
            (tmp_path / folder / f"{number}.txt").write_text("a, b, c, d")
    broken = tmp_path / "subject/3.jpg"
    broken.write_bytes(broken.read_bytes()[:-3000])
    step, regularisation, problems = prepare(tmp_path)
    assert len(problems) == 1 and str(problems[0]).startswith(f"{broken}: ")
    assert regularisation.captions(regularisation.batch_at(0)) == ["a, b, c, d"]
    resumed, _, _ = prepare(tmp_path)
    for index in (7, 0, 20):
        batch, latents, embeddings = step(index)
        assert latents.shape == (len(batch.items), 3, batch.bucket.height // 8, batch.bucket.width // 8)
        again, same_latents, same_embeddings = resumed(index)
        assert again == batch and torch.equal(same_latents, latents)
        assert all(map(torch.equal, embeddings, same_embeddings))
