import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import platformdirs
import pytest
import torch

from plafond.data import cache as cache_module
from plafond.data import digests as digests_module
from plafond.data.cache import TensorCache, cache_folder, cache_key
from plafond.data.digests import Digests, digest_of
from plafond.errors import OutOfSpaceError, PlafondError

KEY = cache_key({"vae": "x"}, "a")


def tensors(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "latent": torch.randn(4, 8, 8, generator=draw).to(torch.bfloat16),
        "turned": torch.randn(3, 5, generator=draw).T,
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) and left[name].dtype == right[name].dtype for name in left
    )


def test_what_is_put_comes_back(tmp_path):
    cache = TensorCache(tmp_path / "new" / "folder")
    assert cache.get(KEY) is None
    cache.put(KEY, tensors())
    assert same(cache.get(KEY), tensors())
    assert same(TensorCache(cache.folder).get(KEY), tensors())
    assert [path.name for path in cache.folder.iterdir()] == [f"{KEY}.safetensors"]


def test_tensors_that_share_memory(tmp_path):
    cache, base = TensorCache(tmp_path), torch.arange(6.0)
    cache.put(KEY, {"all": base, "part": base[2:4]})
    assert cache.get(KEY)["part"].tolist() == [2, 3]


def test_keys_depend_on_every_part():
    keys = {
        cache_key({}, "a"),
        cache_key({}, "b"),
        cache_key({}, "a", "b"),
        cache_key({}, "ab"),
        cache_key({}, 1),
        cache_key({}, "1"),
        cache_key({}, True),
        cache_key({"vae": "x"}, "a"),
        cache_key({"vae": "y"}, "a"),
        cache_key({"te": "x"}, "a"),
    }
    assert len(keys) == 10
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1})


@pytest.mark.parametrize("keep", [0, 5, 8, 60, -1])
def test_a_truncated_file_counts_as_absent(tmp_path, caplog, keep):
    cache = TensorCache(tmp_path)
    cache.put(KEY, tensors())
    path = cache.path(KEY)
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.get(KEY) is None
    assert caplog.messages == [f"{path}: the cached file is damaged; it is made again."]
    cache.put(KEY, tensors())
    assert same(cache.get(KEY), tensors())


def test_one_flipped_bit_anywhere_is_noticed(tmp_path):
    cache = TensorCache(tmp_path)
    cache.put(KEY, {"latent": torch.arange(4.0)})
    path, whole = cache.path(KEY), cache.path(KEY).read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = cache.get(KEY)
        assert found is None or found["latent"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"not safetensors at all", b"\xff" * 64])
def test_foreign_files_count_as_absent(tmp_path, content):
    cache = TensorCache(tmp_path)
    cache.path(KEY).write_bytes(content)
    assert cache.get(KEY) is None


def test_a_file_under_a_wrong_name_counts_as_absent(tmp_path):
    cache, other = TensorCache(tmp_path), cache_key({}, "other")
    cache.put(other, tensors())
    cache.path(other).rename(cache.path(KEY))
    assert cache.get(KEY) is None


def test_killed_in_mid_write_leaves_nothing_half_done(tmp_path):
    program = (
        "import os, sys, torch\n"
        "from pathlib import Path\n"
        "from plafond.data.cache import TensorCache\n"
        "cache = TensorCache(Path(sys.argv[1]))\n"
        "while True:\n"
        "    cache.put('new', {'x': torch.ones(1 << 20)})\n"
        "    cache.put('old', {'x': torch.zeros(1 << 20)})\n"
        "    print('round', flush=True)\n"
    )
    for pause in (0.003, 0.011):
        run = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert run.stdout.readline() == "round\n"
        time.sleep(pause)
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        cache = TensorCache(tmp_path)
        assert cache.get("new")["x"].sum() == 1 << 20
        assert cache.get("old")["x"].sum() == 0


def test_killed_between_write_and_rename(tmp_path):
    program = (
        "import os, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from plafond.data.cache import TensorCache\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "TensorCache(Path(sys.argv[1])).put('a', {'x': torch.ones(4)})\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".writing-")
    assert TensorCache(tmp_path).get("a") is None and left.exists()  # it might belong to a run that is alive
    os.utime(left, (1, 1))
    TensorCache(tmp_path)
    assert not left.exists()


def test_many_writers_of_one_key(tmp_path):
    cache = TensorCache(tmp_path)

    def write_and_read(number):
        cache.put(KEY, tensors())
        return same(cache.get(KEY), tensors())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, range(64)))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(tmp_path, monkeypatch, code):
    cache = TensorCache(tmp_path)

    def fsync(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutOfSpaceError) as error:
        cache.put(KEY, tensors())
    assert str(error.value) == (
        f"{tmp_path}: the disk is full, so the cache cannot grow; free some space and run the same command"
        " again."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails(tmp_path, monkeypatch):
    cache = TensorCache(tmp_path)

    def fsync(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(PlafondError) as error:
        cache.put(KEY, tensors())
    assert str(error.value) == (
        f"{tmp_path}: the cache cannot be written to (Input/output error); expected a folder that this user"
        " can write to."
    )
    assert list(tmp_path.iterdir()) == []


def test_the_folder_lies_beside_the_data_if_it_may(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: home / name)
    assert cache_folder(tmp_path, "_latent_cache") == tmp_path / "_latent_cache"
    assert list((tmp_path / "_latent_cache").iterdir()) == []

    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache_module.tempfile, "TemporaryFile", refuse)
    assert cache_folder(tmp_path, "_latent_cache") == home / "plafond" / "_latent_cache"
    assert (home / "plafond" / "_latent_cache").is_dir()


def old(path, data):
    """A file whose change time is long enough ago to be remembered."""
    path.write_bytes(data)
    return path


@pytest.fixture
def no_grain(monkeypatch):
    monkeypatch.setattr(digests_module, "RACY_NS", -(10**18))


def test_digests_are_remembered(tmp_path, no_grain, monkeypatch):
    path = old(tmp_path / "a.png", b"one")
    digests = Digests(tmp_path)
    assert digests.of(path) == digest_of(b"one")
    digests.save()
    monkeypatch.setattr(digests_module, "digest_of", lambda data: "hashed again")
    assert Digests(tmp_path).of(path) == digest_of(b"one")


@pytest.mark.parametrize("size", ["same", "other"])
def test_an_edit_with_the_time_set_back_is_noticed(tmp_path, no_grain, size):
    path = old(tmp_path / "a.png", b"one")
    digests = Digests(tmp_path)
    digests.of(path)
    digests.save()
    before = path.stat()
    time.sleep(0.02)
    path.write_bytes(b"two" if size == "same" else b"three")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert Digests(tmp_path).of(path) == digest_of(path.read_bytes())


def test_a_fresh_file_is_not_remembered(tmp_path):
    digests = Digests(tmp_path)
    digests.of(old(tmp_path / "a.png", b"one"))
    digests.save()
    assert not (tmp_path / "digests.json").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": 1}', b'{"a": [1, 2]}', b'{"a": [1, 2, 3, 4, 5]}']
)
def test_a_damaged_memory_is_forgotten(tmp_path, no_grain, content):
    (tmp_path / "digests.json").write_bytes(content)
    digests = Digests(tmp_path)
    assert digests.of(old(tmp_path / "a.png", b"one")) == digest_of(b"one")
    digests.save()
    assert Digests(tmp_path)._known == digests._used


def test_two_runs_keep_each_others_digests(tmp_path, no_grain):
    first, second = Digests(tmp_path), Digests(tmp_path)
    first.of(old(tmp_path / "a.png", b"one"))
    second.of(old(tmp_path / "b.png", b"two"))
    first.save()
    second.save()
    assert len(Digests(tmp_path)._known) == 2
