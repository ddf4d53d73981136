import os
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

from plafond.data import latents as latents_module
from plafond.data.batches import build_items, plan_batches
from plafond.data.folder import scan
from plafond.data.latents import cache_latents
from plafond.errors import DataError, NonFiniteError, OutOfSpaceError
from plafond.job.dataset import DatasetConfig

SIGNATURE = {"vae": "tiny", "scale": 0.5}


class Vae:
    """Averages 8x8 squares and counts how often it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, pixels):
        self.calls += 1
        assert pixels.dtype == torch.float32 and pixels.shape[:2] == (1, 3)
        return torch.nn.functional.avg_pool2d(pixels, 8).to(torch.bfloat16)


def paint(path, colour, size=(64, 64)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    for name, colour in (("a.png", "red"), ("b.png", "green"), ("c.png", "blue")):
        paint(folder / name, colour)
    return folder


def items_of(*folders, **keys):
    keys = {"resolution": (64,)} | keys
    found = [scan(DatasetConfig(folder_path=str(path), **keys), index) for index, path in enumerate(folders)]
    return build_items(found, 16)


def run(items, signature=SIGNATURE, **keys):
    vae = Vae()
    return cache_latents(items, vae, signature=signature, **keys), vae.calls


@pytest.mark.parametrize("to_disk", [True, False])
def test_every_item_has_its_latent(folder, to_disk):
    items = items_of(folder, flip_x=True)
    store, calls = run(items, to_disk=to_disk)
    assert calls == len(items) == len(store) == 6 and store.problems == ()
    assert store.surviving(items) == items
    assert store[items[0]].shape == (3, 8, 8) and store[items[0]].dtype == torch.bfloat16
    assert store[items[0]][:, 0, 0].tolist() == [1, -1, -1]  # a.png is red
    assert (folder / "_latent_cache").exists() == to_disk


def test_mirrored_copies_are_mirrored(folder):
    half = Image.new("RGB", (64, 64), "black")
    half.paste("white", (0, 0, 32, 64))
    half.save(folder / "a.png")
    plain, mirrored, *_ = items_of(folder, flip_x=True)
    store, _ = run([plain, mirrored], to_disk=False)
    assert mirrored.flip_x and torch.equal(store[plain].flip(-1), store[mirrored])


def test_the_data_set_says_where(folder):
    run(items_of(folder))
    assert not (folder / "_latent_cache").exists()
    run(items_of(folder, cache_latents_to_disk=True))
    assert len(list((folder / "_latent_cache").glob("*.safetensors"))) == 3


def test_a_second_run_encodes_nothing_and_gives_the_same(folder):
    items = items_of(folder)
    first, calls = run(items, to_disk=True)
    second, again = run(items_of(folder), to_disk=True)
    assert (calls, again) == (3, 0)
    assert all(torch.equal(first[item], second[item]) for item in items)


def test_the_cached_pictures_are_not_part_of_the_data_set(folder):
    run(items_of(folder), to_disk=True)
    assert len(items_of(folder)) == 3


def test_each_distinct_picture_is_encoded_once(folder, tmp_path):
    copy = tmp_path / "copy"
    paint(copy / "again.png", "red")
    for to_disk in (False, True):
        items = items_of(folder, copy, resolution=(64, 128))
        assert len(items) == 8  # 64 pixels are 64 pixels at both resolutions
        store, calls = run(items, to_disk=to_disk)
        assert calls == 3 and len(store) == 8
        assert torch.equal(store[items[0]], store[items[-1]])


@pytest.mark.parametrize("change", [{"vae": "other"}, {"scale": 0.25}, {"dtype": "float32"}])
def test_another_encoder_is_another_latent(folder, change):
    run(items_of(folder), to_disk=True)
    assert run(items_of(folder), SIGNATURE | change, to_disk=True)[1] == 3
    assert run(items_of(folder), to_disk=True)[1] == 0


@pytest.mark.parametrize("age", [0, 3])
def test_an_edited_picture_is_never_stale(folder, monkeypatch, age):
    if age:
        # As if the first run had started long after the pictures were saved: their hashes are remembered.
        monkeypatch.setattr("plafond.data.digests.RACY_NS", -(10**18))
    path = folder / "a.png"
    path.write_bytes(path.read_bytes() + b" " * 9)
    run(items_of(folder), to_disk=True)
    before = path.stat()
    time.sleep(0.02)
    paint(path, "white")
    path.write_bytes(path.read_bytes().ljust(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    items = items_of(folder)
    store, calls = run(items, to_disk=True)
    assert calls == 1 and store[items[0]].min() == 1


def test_swapped_pictures_swap_their_latents(folder):
    first, _ = run(items_of(folder), to_disk=True)
    before = {item.picture.name: first[item].clone() for item in items_of(folder)}
    (folder / "a.png").rename(folder / "x")
    (folder / "b.png").rename(folder / "a.png")
    (folder / "x").rename(folder / "b.png")
    items = items_of(folder)
    store, calls = run(items, to_disk=True)
    assert calls == 0
    assert torch.equal(store[items[0]], before["b.png"]) and torch.equal(store[items[1]], before["a.png"])


def test_a_damaged_cache_file_is_made_again(folder):
    run(items_of(folder), to_disk=True)
    path = next((folder / "_latent_cache").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-7])
    assert run(items_of(folder), to_disk=True)[1] == 1
    assert run(items_of(folder), to_disk=True)[1] == 0


@pytest.mark.parametrize("to_disk", [True, False])
def test_broken_data_behind_a_good_header_is_named_and_skipped(folder, to_disk):
    path = folder / "b.jpg"
    Image.effect_noise((64, 64), 90).save(path)
    path.write_bytes(path.read_bytes()[:-900])
    for _ in range(2):  # on every run, not only on the first
        items = items_of(folder, flip_x=True)
        reports = []
        store, _ = run(items, to_disk=to_disk, progress=lambda *report, to=reports: to.append(report))
        assert tuple(map(str, store.problems)) == (
            f"{path}: the picture data is broken or cut off (image file is truncated); expected a file that"
            " decodes to the end.",
        )
        assert [item.picture.name for item in store.surviving(items)] == [
            name for name in ("a.png", "b.png", "c.png") for _ in range(2)
        ]
        assert reports[0] == (0, 8) and reports[-1] == (8, 8)


def test_nothing_that_survives_is_an_error(folder):
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    items = items_of(folder)
    store, _ = run(items)
    assert len(store.problems) == 3
    with pytest.raises(DataError, match="No picture is left to train on"):
        plan_batches(store.surviving(items), 1, 0)


def test_a_picture_that_changes_during_the_start(folder):
    items = items_of(folder)
    paint(folder / "a.png", "red", (80, 64))
    (folder / "b.png").unlink()
    store, _ = run(items)
    assert tuple(map(str, store.problems)) == (
        f"{folder / 'a.png'}: now 80x64 pixels, but 64x64 when the folder was read; expected it to stay"
        " the same"
        " during the start.",
        f"{folder / 'b.png'}: cannot be read (No such file or directory); expected a picture.",
    )


def test_nan_is_never_cached(folder):
    def overflow(pixels):
        return pixels * float("nan")

    with pytest.raises(NonFiniteError) as error:
        cache_latents(items_of(folder), overflow, signature=SIGNATURE, to_disk=True)
    assert str(error.value) == (
        f"{folder / 'a.png'}: the VAE returned NaN or infinity at 64x64; expected numbers, which bf16 or"
        " float32"
        " instead of float16 usually gives."
    )
    assert list((folder / "_latent_cache").glob("*.safetensors")) == []


def test_a_latent_that_vanishes_during_the_run(folder):
    items = items_of(folder)
    store, _ = run(items, to_disk=True)
    paths = {path.name: path for path in (folder / "_latent_cache").glob("*.safetensors")}
    for path in paths.values():
        path.unlink()
    with pytest.raises(
        DataError, match=r"the cached latent of a.png was removed or damaged during the run; run"
    ):
        store[items[0]]


def test_a_full_disk_stops_with_a_sentence(folder, monkeypatch):
    def fsync(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutOfSpaceError, match=r"_latent_cache: the disk is full"):
        run(items_of(folder), to_disk=True)


def test_reading_ahead_keeps_the_order_and_a_bound(folder, monkeypatch):
    for number in range(40):
        paint(folder / f"n{number:02}.png", (number, 0, 0))
    decoded, seen = [], []
    load = latents_module.load_rgb
    monkeypatch.setattr(
        latents_module, "load_rgb", lambda path, data: decoded.append(path) or load(path, data)
    )

    def encode(pixels):
        seen.append(pixels[0, 0, 0, 0].item())
        assert len(decoded) - len(seen) <= latents_module.READERS + 1
        return pixels

    items = items_of(folder)
    store = cache_latents(items, encode, signature=SIGNATURE)
    assert [store[item][0, 0, 0].item() for item in items] == seen


def test_killed_while_caching_and_resumed(folder):
    program = (
        "import os, signal, sys\n"
        "from plafond.data.batches import build_items\n"
        "from plafond.data.folder import scan\n"
        "from plafond.data.latents import cache_latents\n"
        "from plafond.job.dataset import DatasetConfig\n"
        "calls = []\n"
        "def encode(pixels):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return pixels\n"
        "found = scan(DatasetConfig(folder_path=sys.argv[1], resolution=(64,)))\n"
        "cache_latents(build_items([found], 16), encode, signature={'vae': 'tiny', 'scale': 0.5},"
        " to_disk=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder)]).returncode == -9
    assert run(items_of(folder), to_disk=True)[1] == 1


def test_an_edited_caption_changes_the_prompt_only(folder):
    (folder / "a.txt").write_text("one")
    items = items_of(folder)
    run(items, to_disk=True)
    assert plan_batches(items, 1, 0)[0].prompts() == ["one", ""]
    (folder / "a.txt").write_text("two")
    items = items_of(folder)
    assert plan_batches(items, 1, 0)[0].prompts() == ["two", ""]
    assert run(items, to_disk=True)[1] == 0
