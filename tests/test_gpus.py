"""The catalogue of GPUs, sizes as users write them, and ceilings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from plafond.cli import app
from plafond.errors import UsageError
from plafond.memory.gpus import (
    CONTEXT_BYTES,
    DISPLAY_BYTES,
    GIB,
    MIB,
    ceiling_for,
    context_overhead,
    display_reserve,
    find_gpu,
    gpus,
    parse_size,
)
from plafond.memory.kernels import Target


def test_the_catalogue_is_plausible() -> None:
    cards = gpus()
    assert len(cards) >= 40
    assert len({gpu.name for gpu in cards}) == len(cards)
    assert min(gpu.marketed_gb for gpu in cards) == 6
    assert max(gpu.marketed_gb for gpu in cards) == 192
    for gpu in cards:
        assert 0.9 * gpu.marketed_gb * GIB < gpu.usable_bytes < gpu.driver_bytes <= gpu.marketed_gb * GIB, (
            gpu.name
        )
        assert 100e9 < gpu.bandwidth < 9e12, gpu.name
        assert 4e12 < gpu.flops < 2.3e15, gpu.name
        assert 10e9 < gpu.link < gpu.bandwidth, gpu.name


def test_every_name_and_alias_finds_its_card() -> None:
    for gpu in gpus():
        for name in (gpu.name, *gpu.aliases):
            assert find_gpu(name) is gpu
            assert find_gpu(name.lower().replace(" ", "")) is gpu
            assert find_gpu(f"NVIDIA {name.upper()} ") is gpu


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
        ("RTX 4090 24GB", "RTX 4090"),
        ("4060ti 16gb", "RTX 4060 Ti 16GB"),
        ("3080 laptop", "RTX 3080 Laptop 16GB"),
        ("a4000", "RTX A4000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("Tesla T4", "T4"),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("7900xtx", "Radeon RX 7900 XTX"),
    ],
)
def test_names_as_users_and_drivers_write_them(text: str, name: str) -> None:
    assert find_gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("RTX 4091", "no GPU named 'RTX 4091'; did you mean RTX 4090?"),
        ("RTX 4090 Ti", "no GPU named 'RTX 4090 Ti'; did you mean RTX 4090?"),
        ("RTX 4090 48GB", "no GPU named 'RTX 4090 48GB': RTX 4090 has 24 GB"),
        ("A100", "'A100' is sold in several sizes; say A100 40GB or A100 80GB"),
        ("a kettle", "no GPU named 'a kettle'; `plafond gpus` lists those that are known"),
        ("", "no GPU named ''; `plafond gpus` lists those that are known"),
    ],
)
def test_names_that_are_not_known(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        find_gpu(text)
    assert str(error.value) == sentence


@given(st.text(max_size=30))
def test_any_text_is_a_card_or_a_sentence(text: str) -> None:
    try:
        assert find_gpu(text) in gpus()
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * GIB),
        ("24 GiB", 24 * GIB),
        ("24g", 24 * GIB),
        ("7.5GB", 15 * GIB // 2),
        (".5gb", GIB // 2),
        ("600MB", 600 * MIB),
        ("600MiB", 600 * MIB),
        ("1024 kb", MIB),
        (" 25769803776 ", 24 * GIB),
        ("25769803776B", 24 * GIB),
        ("0.1GB", 107374182),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("24", "'24' is less than 1 MB; did you mean 24GB?"),
        ("0GB", "'0GB' is less than 1 MB"),
        ("12KB", "'12KB' is less than 1 MB"),
        ("7,5GB", "'7,5GB' is no size; did you mean 7.5GB?"),
        ("-3GB", "'-3GB' is no size; write it as 24GB, 7.5GB, 600MB or a number of bytes"),
        ("24XB", "'24XB' is no size; write it as 24GB, 7.5GB, 600MB or a number of bytes"),
        ("", "'' is no size; write it as 24GB, 7.5GB, 600MB or a number of bytes"),
    ],
)
def test_sizes_that_are_none(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_size(text)
    assert str(error.value) == sentence


@given(st.integers(MIB, 2**50))
def test_a_number_is_that_many_bytes(size: int) -> None:
    assert parse_size(str(size)) == size


def test_ceiling_of_a_size() -> None:
    ceiling = ceiling_for("24GB", None)
    assert ceiling.bytes == 24 * GIB
    assert ceiling.overhead_bytes == CONTEXT_BYTES
    assert ceiling.reserved_bytes == 24 * GIB - CONTEXT_BYTES
    assert ceiling.gpu is None
    assert str(ceiling.description) == "24.00 GiB as asked for"


def test_ceiling_of_a_card() -> None:
    ceiling = ceiling_for(None, "rtx 4090")
    card = find_gpu("RTX 4090")
    assert ceiling.gpu is card
    assert ceiling.bytes == card.usable_bytes - DISPLAY_BYTES
    assert str(ceiling.description) == "RTX 4090: 23.50 GiB as CUDA shows it, less 0.50 GiB for a desktop"
    server = ceiling_for(None, "L4")
    assert server.bytes == find_gpu("L4").usable_bytes
    assert str(server.description) == "L4: 22.02 GiB as CUDA shows it"


def test_ceiling_of_a_size_on_a_card() -> None:
    assert ceiling_for("16GB", "RTX 4090").bytes == 16 * GIB
    assert str(ceiling_for("16GB", "RTX 4090").description) == "16.00 GiB as asked for on RTX 4090"
    whole = ceiling_for("24GB", "RTX 4090")
    assert whole.bytes == find_gpu("RTX 4090").usable_bytes
    assert str(whole.description) == "23.50 GiB, all that RTX 4090 has for a process"


def test_ceiling_of_nothing() -> None:
    with pytest.raises(UsageError, match="say which ceiling is meant"):
        ceiling_for(None, None)


def test_a_measured_overhead_wins() -> None:
    assert context_overhead() == CONTEXT_BYTES
    assert context_overhead(measured=123) == 123


def test_cublas_workspace() -> None:
    cards = [(8, 9), (7, 5), (9, 0), (12, 0)]
    small, old, hopper, blackwell = (Target("cuda", card).cublas_workspace for card in cards)
    assert small == old == 8_519_680 == int(8.125 * MIB)
    assert hopper == blackwell == 32 * MIB


def test_display_reserve() -> None:
    assert display_reserve(None) == display_reserve(find_gpu("A10")) == 0
    assert display_reserve(find_gpu("RTX 3060")) == DISPLAY_BYTES


def test_the_command_fits_100_columns() -> None:
    result = CliRunner().invoke(app, ["gpus"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "RTX 4090" in result.stdout
    assert "23.50" in result.stdout
    assert len(lines) > len(gpus())


def test_the_command_prints_json() -> None:
    listed = json.loads(CliRunner().invoke(app, ["gpus", "--json"]).stdout)
    assert listed["schema"] == 1
    by_name = {entry["name"]: entry for entry in listed["gpus"]}
    assert by_name["RTX 4090"]["compute_capability"] == "8.9"
    assert by_name["Instinct MI300X"]["compute_capability"] is None
    assert by_name["H200"]["driver_bytes"] == 143771 * MIB
