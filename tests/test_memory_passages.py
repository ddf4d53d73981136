"""Work that a dry run repeats without doing it adds to the trace what doing it would have added."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from plafond.memory.kernels import Target, chosen_kernels
from plafond.memory.meta import MetaLedger
from plafond.memory.passages import Passages, state_of
from plafond.memory.residence import counting
from plafond.memory.trace import Block, Trace

CUDA = Target("cuda")


def layers() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 32)).requires_grad_(False)


def encode(model: nn.Module, tokens: int) -> Callable[[], dict[str, Tensor]]:
    def work() -> dict[str, Tensor]:
        with torch.no_grad():
            out = model(torch.empty(tokens, 64, device="meta"))
            return {"text": out * 2, "length": torch.tensor([tokens])}

    return work


def often(known: Passages | None, stage: str) -> Trace:
    """Encode several times, with something in between."""
    model = layers()
    with chosen_kernels(CUDA), counting(MetaLedger(CUDA)) as ledger:
        ledger.adopt_module(model)
        ledger.stage = stage
        kept = []
        for index in (None, 3, 5):
            ledger.handled = None if index is None else Block("blocks", index)
            work = encode(model, 16)
            text = work() if known is None else known.passing("text", ledger, work)
            kept.append(torch.empty(3, 1000, device="meta") + text["text"].sum())
        del text
        kept.append(torch.empty(7, device="meta"))
        ledger.finish()
        return ledger.trace


@pytest.mark.parametrize("stage", ["start", "update"])
def test_a_repeated_passage_adds_what_the_work_adds(stage: str) -> None:
    known = Passages()
    done, repeated, again = often(None, stage), often(known, stage), often(known, stage)
    assert done.total_flops > 0
    assert len({event.block for event in done.events}) == (3 if stage == "update" else 1)
    assert repeated == done
    assert again == done


def test_tensors_of_a_repeated_passage_are_alike_and_die_alike() -> None:
    known, model = Passages(), layers()
    with counting(MetaLedger(CUDA)) as ledger:
        ledger.adopt_module(model)
        ledger.reserve(1 << 20)
        ledger.workspaces = 1
        first = known.passing("text", ledger, encode(model, 16))
        second = known.passing("text", ledger, lambda: pytest.fail("the work is not done again"))
        assert second["text"].shape == first["text"].shape and second["text"] is not first["text"]
        assert second["length"].tolist() == [16], "main memory's tensors have data"
        live = ledger.live
        del second
        assert ledger.live == live - 16 * 32 * 4


def test_modules_that_stay_are_counted_again_under_another_ledger() -> None:
    known = Passages()

    def arrive(ledger: MetaLedger) -> Callable[[], nn.Module]:
        def work() -> nn.Module:
            model = layers()
            ledger.adopt_module(model)
            return model

        return work

    models, traces = [], []
    for _ in range(2):
        with counting(MetaLedger(CUDA)) as ledger:
            model = known.lasting("model", ledger, arrive(ledger), state_of)
            assert all(ledger.holds(parameter) for parameter in model.parameters())
            traces.append(ledger.trace)
            models.append(model)
            ledger.finish()
    assert models[0] is models[1]
    assert traces[0] == traces[1]


def test_work_that_touches_what_was_there_is_done_every_time() -> None:
    known, calls = Passages(), []
    with counting(MetaLedger(CUDA)) as ledger:
        for _ in range(2):
            before = [torch.empty(1000, device="meta")]

            def work(before: list[Tensor] = before) -> dict[str, Tensor]:
                calls.append(1)
                before.clear()
                return {"text": torch.empty(2, device="meta")}

            known.passing("text", ledger, work)
    assert len(calls) == 2


def test_what_is_changed_afterwards_is_copied() -> None:
    known = Passages()

    def arrive() -> nn.Module:
        model = layers()
        ledger.adopt_module(model)
        return model

    models, traces = [], []
    for _ in range(3):
        with counting(MetaLedger(CUDA)) as ledger:
            model = known.copied("model", ledger, arrive, state_of)
            assert [name for name, _ in model.named_children()] == ["0", "1", "2"]
            assert all(ledger.holds(parameter) for parameter in model.parameters())
            model.append(nn.Identity())
            traces.append(ledger.trace)
            models.append(model)
            ledger.finish()
    assert models[0] is not models[1] and models[1] is not models[2]
    assert traces[0] == traces[1] == traces[2]
