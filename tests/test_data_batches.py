from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plafond.data.batches import BatchPlan, Shape, build_items, plan_batches
from plafond.data.buckets import Bucket
from plafond.data.folder import Picture, Scan
from plafond.errors import DataError
from plafond.job.dataset import DatasetConfig

SIZES = [(1024, 1024), (1500, 1000), (1000, 1500), (600, 600), (1920, 1080)]


def data_set(sizes, index=0, repeats=1, caption="a, b, c", **keys):
    config = DatasetConfig(folder_path=f"data{index}", **keys)
    pictures = [
        Picture(
            Path(f"{i}.png"), f"{i}.png", Path(), w, h, caption, None, repeats * config.num_repeats, index
        )
        for i, (w, h) in enumerate(sizes)
    ]
    return Scan(config, tuple(pictures), (), ())


def epoch_of(plan, epoch):
    count = plan.batches_per_epoch
    return [plan.batch_at(index) for index in range(epoch * count, (epoch + 1) * count)]


sizes = st.lists(st.sampled_from(SIZES), min_size=1, max_size=25)
data_sets = st.lists(
    st.tuples(
        sizes,
        st.integers(1, 3),
        st.sampled_from([(512,), (512, 768)]),
        st.sampled_from([None, 2]),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=40)
@given(data_sets, st.integers(1, 5), st.integers(0, 2**32))
def test_each_epoch_shows_every_item_and_batches_keep_their_rules(sets, batch_size, seed):
    scans = [
        data_set(s, i, repeats, resolution=res, batch_size=own, flip_x=flip, loss_multiplier=1.0 + i % 2)
        for i, (s, repeats, res, own, flip) in enumerate(sets)
    ]
    items = build_items(scans, 16)
    plan = BatchPlan(items, batch_size, seed)
    for epoch in (0, 1, 5):
        batches = epoch_of(plan, epoch)
        assert Counter(item for batch in batches for item in batch.items) == Counter(
            {item: item.picture.repeats for item in items}
        )
        for batch in batches:
            assert batch.epoch == epoch
            assert {item.bucket for item in batch.items} == {batch.bucket}
            assert len({item.config.batch_size or batch_size for item in batch.items}) == 1
            assert len({item.config.loss_multiplier for item in batch.items}) == 1
            assert 1 <= len(batch.items) <= (batch.items[0].config.batch_size or batch_size)
        assert Counter(Shape(batch.bucket, len(batch.items)) for batch in batches) == plan.shapes()
        assert Counter(item.bucket for batch in batches for item in batch.items) == plan.buckets()


@settings(deadline=None, max_examples=30)
@given(sizes, st.integers(1, 4), st.integers(0, 99), st.lists(st.integers(0, 200), max_size=6))
def test_a_batch_depends_on_nothing_but_its_number(sizes, batch_size, seed, indices):
    items = build_items([data_set(sizes)], 16)
    plan = BatchPlan(items, batch_size, seed)
    for index in indices:
        assert plan.batch_at(index) == BatchPlan(items, batch_size, seed).batch_at(index)


def test_epochs_and_seeds_differ():
    items = build_items([data_set([(1024, 1024)] * 30)], 16)
    plan = BatchPlan(items, 4, 1)
    first, second = epoch_of(plan, 0), epoch_of(plan, 1)
    assert [batch.items for batch in first] != [batch.items for batch in second]
    assert {frozenset(batch.items) for batch in first} != {frozenset(batch.items) for batch in second}
    assert [batch.items for batch in epoch_of(BatchPlan(items, 4, 2), 0)] != [batch.items for batch in first]


def test_the_order_is_the_same_on_every_machine():
    plan = BatchPlan(build_items([data_set([(1024, 1024)] * 6)], 16), 2, 42)
    order = [[int(item.picture.name[0]) for item in batch.items] for batch in epoch_of(plan, 0)]
    assert order == ORDER_OF_SEED_42


ORDER_OF_SEED_42 = [[5, 0], [2, 3], [1, 4]]


def test_the_last_batch_is_smaller_not_padded():
    plan = BatchPlan(build_items([data_set([(1024, 1024)] * 7)], 16), 4, 0)
    assert plan.batches_per_epoch == 2
    assert sorted(len(batch.items) for batch in epoch_of(plan, 0)) == [3, 4]


def test_resolutions_clone_and_flips_add():
    items = build_items([data_set([(600, 600)], resolution=(512, 768, 1024))], 16)
    assert [(item.resolution, str(item.bucket)) for item in items] == [
        (512, "512x512"),
        (768, "592x608"),
        (1024, "592x608"),
    ]
    assert len(build_items([data_set([(600, 600)], flip_x=True)], 16)) == 2
    both = build_items([data_set([(600, 600)], flip_x=True, flip_y=True)], 16)
    assert {(item.flip_x, item.flip_y) for item in both} == {
        (a, b) for a in (True, False) for b in (True, False)
    }


def test_square_crops_and_scale():
    def bucket(size, **keys):
        return str(build_items([data_set([size], resolution=(512,), **keys)], 16)[0].bucket)

    assert bucket((1500, 1000), buckets=False) == bucket((1500, 1000), square_crop=True) == "512x512"
    assert bucket((500, 1000), buckets=False) == "496x496"
    assert bucket((1000, 1000), scale=0.25) == "240x256"


def test_random_crops_differ_between_pictures_and_stay():
    scans = [data_set([(1500, 1000)] * 5, random_crop=True)]
    crops = [item.crop for item in build_items(scans, 16)]
    assert len(set(crops)) == 5 and crops == [item.crop for item in build_items(scans, 16)]
    assert all(0 <= part <= 1 for crop in crops for part in crop)


def test_the_largest_bucket_comes_first():
    plan = BatchPlan(build_items([data_set(SIZES, resolution=(512, 1024))], 16), 2, 0)
    assert plan.largest_bucket() == Bucket(1024, 1024)
    pixels = [bucket.pixels for bucket in plan.buckets()]
    assert pixels == sorted(pixels, reverse=True)
    loads = [shape.bucket.pixels * shape.size for shape in plan.shapes()]
    assert loads == sorted(loads, reverse=True)


def test_adapter_strength_keeps_batches_apart():
    scans = [data_set([(1024, 1024)] * 3), data_set([(1024, 1024)] * 3, 1, network_weight=0.5)]
    for batch in epoch_of(BatchPlan(build_items(scans, 16), 6, 0), 0):
        assert len({item.config.network_weight for item in batch.items}) == 1


def test_regularisation_has_its_own_plan():
    scans = [data_set(SIZES), data_set(SIZES[:2], 1, is_reg=True)]
    plan, regularisation = plan_batches(build_items(scans, 16), 1, 0)
    assert regularisation is not None
    assert (plan.batches_per_epoch, regularisation.batches_per_epoch) == (5, 2)
    assert plan_batches(build_items(scans[:1], 16), 1, 0)[1] is None


def test_only_regularisation_is_an_error():
    with pytest.raises(DataError) as error:
        plan_batches(build_items([data_set(SIZES, is_reg=True)], 16), 1, 0)
    assert str(error.value) == (
        "Every data set is regularisation data (is_reg: true); expected at least one to train on."
    )


def test_nothing_left_is_an_error():
    with pytest.raises(DataError) as error:
        plan_batches([], 1, 0)
    assert str(error.value) == (
        "No picture is left to train on; expected at least one that can be read to its end."
    )


@pytest.mark.parametrize("variants", [1, 3, None])
def test_captions_follow_the_batch(variants):
    scans = [data_set(SIZES, shuffle_tokens=True, caption_dropout_rate=0.2, trigger_word="ohwx")]
    plan = BatchPlan(build_items(scans, 16), 2, 5)
    drawn = [plan.captions(plan.batch_at(index), variants) for index in range(60)]
    assert drawn == [plan.captions(plan.batch_at(index), variants) for index in range(60)]
    assert all(len(captions) == len(plan.batch_at(index).items) for index, captions in enumerate(drawn))
    if variants is not None:
        assert {caption for captions in drawn for caption in captions} <= set(plan.prompts(variants))


def test_prompts_of_a_picture_listed_with_two_captions():
    one, two = data_set([(64, 64)], caption="one"), data_set([(64, 64)], caption="two")
    items = build_items([Scan(one.config, one.pictures + two.pictures, (), ())], 16)
    assert BatchPlan(items, 1, 0).prompts() == ["one", "two"]
