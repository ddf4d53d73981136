import pytest
from hypothesis import given
from hypothesis import strategies as st

from plafond.data.buckets import Bucket, bucket_for, square_bucket

VECTORS = [
    ((1920, 1080), 16, ("672x384", "1024x576", "1360x768")),
    ((1000, 1500), 16, ("416x624", "624x944", "832x1248")),
    ((3000, 2000), 16, ("624x416", "944x624", "1248x832")),
    ((600, 600), 16, ("512x512", "592x608", "592x608")),
    ((1920, 1080), 32, ("672x384", "1024x576", "1344x768")),
    ((1000, 1500), 32, ("416x608", "608x960", "832x1248")),
    ((3000, 2000), 32, ("608x416", "960x608", "1248x832")),
    ((600, 600), 32, ("512x512", "608x608", "608x608")),
]

sides = st.integers(1, 20_000)
divisors = st.sampled_from([8, 16, 32, 64])
resolutions = st.sampled_from([256, 512, 768, 1000, 1024, 1536, 2048])


@pytest.mark.parametrize(("size", "divisor", "expected"), VECTORS)
def test_worked_vectors(size, divisor, expected):
    assert tuple(str(bucket_for(*size, res, divisor)) for res in (512, 768, 1024)) == expected


def test_a_picture_of_the_exact_size_keeps_it():
    assert bucket_for(1024, 1024, 1024, 16) == Bucket(1024, 1024)
    assert bucket_for(2048, 2048, 512, 64) == Bucket(512, 512)


def test_a_picture_smaller_than_one_unit_gets_one_unit():
    assert bucket_for(1, 1, 512, 16) == Bucket(16, 16)
    assert bucket_for(5, 100_000, 64, 16) == Bucket(16, 256)


@given(sides, sides, resolutions, divisors)
def test_sides_are_multiples_and_the_area_never_passes_the_limit(width, height, resolution, divisor):
    bucket = bucket_for(width, height, resolution, divisor)
    assert bucket.width % divisor == bucket.height % divisor == 0
    assert bucket.width >= divisor and bucket.height >= divisor
    assert bucket.pixels <= resolution**2


@given(sides, sides, resolutions, divisors)
def test_no_side_grows_by_more_than_one_unit(width, height, resolution, divisor):
    bucket = bucket_for(width, height, resolution, divisor)
    assert bucket.width < width + divisor and bucket.height < height + divisor


@given(sides, sides, resolutions, divisors)
def test_turning_the_picture_turns_the_area_not_more(width, height, resolution, divisor):
    assert (
        bucket_for(width, height, resolution, divisor).pixels
        == bucket_for(height, width, resolution, divisor).pixels
    )


@given(sides, sides, resolutions, divisors)
def test_square_is_square_and_never_larger_than_the_picture(width, height, resolution, divisor):
    bucket = square_bucket(width, height, resolution, divisor)
    assert bucket.width == bucket.height <= max(divisor, min(width, height, resolution))
