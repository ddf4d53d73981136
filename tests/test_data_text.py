import pytest
import torch

from plafond.data.text import cache_text
from plafond.errors import DataError, NonFiniteError


class Encoder:
    def __init__(self):
        self.prompts = []

    def __call__(self, prompts):
        self.prompts += prompts
        return [
            {
                "embeds": torch.full((len(p) + 1, 4), float(len(p)), dtype=torch.bfloat16),
                "mask": torch.ones(2).bool(),
            }
            for p in prompts
        ]


def run(prompts, signature=None, **keys):
    encoder = Encoder()
    return cache_text(prompts, encoder, signature=signature or {"te": "tiny"}, **keys), encoder.prompts


@pytest.mark.parametrize("disk", [True, False])
def test_each_distinct_prompt_is_encoded_once(tmp_path, disk):
    store, encoded = run(["a", "", "a", "bb", ""], folder=tmp_path if disk else None)
    assert encoded == ["a", "", "bb"] and len(store) == 3
    assert "bb" in store and "c" not in store
    assert store["bb"]["embeds"].tolist() == [[2.0] * 4] * 3 and store["bb"]["embeds"].dtype == torch.bfloat16
    assert store[""]["mask"].tolist() == [True, True]
    assert bool(list(tmp_path.iterdir())) == disk


def test_runs_share_the_folder(tmp_path):
    run(["a", "b"], folder=tmp_path)
    assert run(["b", "c"], folder=tmp_path)[1] == ["c"]
    assert run(["a"], {"te": "other"}, folder=tmp_path)[1] == ["a"]
    assert run(["a", "b", "c"], folder=tmp_path)[1] == []


@pytest.mark.parametrize("prompt", ["日本語 🦊", "x" * 20_000, "a\nb\0c", "\udce9", "../../etc", " a ", "a"])
def test_any_text_is_a_prompt(tmp_path, prompt):
    run(["a ", " a"], folder=tmp_path)
    assert run([prompt], folder=tmp_path)[1] == [prompt]
    assert run([prompt], folder=tmp_path)[1] == []


def test_a_damaged_file_is_made_again(tmp_path):
    run(["a"], folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:50])
    assert run(["a"], folder=tmp_path)[1] == ["a"]
    store, encoded = run(["a"], folder=tmp_path)
    assert encoded == []
    path.unlink()
    with pytest.raises(DataError) as error:
        store["a"]
    assert str(error.value) == (
        f"{path}: the cached embedding of 'a' was removed or damaged during the run; run the same command"
        " again"
        " to make it anew."
    )


def test_nan_is_never_cached(tmp_path):
    def overflow(prompts):
        return [{"embeds": torch.tensor([float("inf")])}]

    with pytest.raises(NonFiniteError) as error:
        cache_text(["a cat"], overflow, signature={}, folder=tmp_path)
    assert str(error.value) == (
        "The text encoder returned NaN or infinity in embeds for 'a cat'; expected numbers, which bf16"
        " or float32"
        " instead of float16 usually gives."
    )
    assert list(tmp_path.iterdir()) == []


def test_progress_is_reported():
    reports = []
    run(["a", "b", "a"], progress=lambda done, total: reports.append((done, total)))
    assert reports == [(0, 2), (1, 2), (2, 2)]
