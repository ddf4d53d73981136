"""From pictures to batches.

The way: a `Picture` becomes one `Item` per resolution of its data set and per mirrored copy; items are seen
`repeats` times per epoch; items of one bucket and one data set's settings form a group; a group is cut into
batches.

The order needs no state. Batch number `index` of a run (0, 1, 2, ...) belongs to epoch ``index //
batches_per_epoch``; each epoch shuffles inside its groups, cuts them into batches, and shuffles the batches,
with random numbers that depend on the seed and the epoch alone. To resume a run, its step is enough.

The last batch of a group is smaller when the group does not divide: no picture is repeated to fill it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from plafond.data.buckets import Bucket, bucket_of
from plafond.data.captions import caption_for, possible_captions
from plafond.data.chance import chance
from plafond.data.folder import Picture, Scan
from plafond.errors import DataError
from plafond.language.said import N_

if TYPE_CHECKING:
    from plafond.job.dataset import DatasetConfig

CENTRE = (0.5, 0.5)


@dataclass(frozen=True)
class Item:
    """One version of a picture that is trained on: what the latent of an image is made from.

    Args:
        picture: the picture.
        config: the settings of its data set (loss multiplier, adapter strength and so on).
        resolution: the entry of the data set's resolutions that this item belongs to, in pixels.
        bucket: the size that the picture is resized and cropped to.
        flip_x: mirrored left to right.
        flip_y: mirrored top to bottom.
        crop: where the cut lies on the overlapping axis, from 0 (left, top) to 1 (right, bottom).
        controls: sizes of its control images.
    """

    picture: Picture
    config: DatasetConfig = field(compare=False, repr=False)
    resolution: int
    bucket: Bucket
    flip_x: bool = False
    flip_y: bool = False
    crop: tuple[float, float] = CENTRE
    controls: tuple[Bucket, ...] = ()


@dataclass(frozen=True)
class Batch:
    """The items of one forward pass: one bucket, and one data set's `loss_multiplier`, `network_weight` and target.

    Args:
        index: its number in the run.
        epoch: the epoch that it belongs to.
        bucket: the size of all its items.
        items: one or more.
    """

    index: int
    epoch: int
    bucket: Bucket
    items: tuple[Item, ...]

    @property
    def shape(self) -> Shape:
        """What it looks like to the memory planner."""
        return Shape(self.bucket, len(self.items))


@dataclass(frozen=True, order=True)
class Shape:
    """What a batch looks like to the memory planner: a bucket and a number of items."""

    bucket: Bucket
    size: int

    @property
    def order(self) -> tuple[int, Shape]:
        """Sorts shapes from the most pixels to the fewest."""
        return -self.bucket.pixels * self.size, self


def build_items(scans: Iterable[Scan], divisor: int) -> list[Item]:
    """Every item of `scans`, in a fixed order; both sides of each bucket are multiples of `divisor` pixels.

    A list of resolutions clones the data set: each picture is seen once per resolution, a small one in the
    same bucket several times (it is encoded only once). `flip_x` adds mirrored copies, and `flip_y` again of
    all these. A random crop is drawn once per picture and resolution, so that its latent can be cached.
    """
    items = []
    for found in scans:
        config = found.config
        flips = [
            (x, y) for y in (False, True)[: 1 + config.flip_y] for x in (False, True)[: 1 + config.flip_x]
        ]
        for resolution in config.resolution:
            for picture in found.pictures:
                bucket = bucket_of(picture.width, picture.height, config, resolution, divisor)
                bucket = replace(bucket, frames=max(1, len(picture.frames)))
                crop = _random_crop(picture.name, resolution) if config.random_crop else CENTRE
                items += [Item(picture, config, resolution, bucket, x, y, crop) for x, y in flips]
    return items


class BatchPlan:
    """All batches of a run, by number.

    Args:
        items: what to train on, after broken pictures were taken out: the plan is a function of these.
        batch_size: items per batch where a data set does not say its own.
        seed: the run's seed.

    Raises:
        DataError: there are no items.
    """

    def __init__(self, items: Sequence[Item], batch_size: int, seed: int):
        if not items:
            raise DataError(
                N_("No picture is left to train on; expected at least one that can be read to its end.")
            )
        self.items = tuple(items)
        self.seed = seed
        groups: dict[tuple[Bucket, int, float, float, tuple[Bucket, ...], bool], list[Item]] = defaultdict(
            list
        )
        for item in items:
            config = item.config
            size = config.batch_size or batch_size
            own = (config.loss_multiplier, config.network_weight, item.controls, config.prior_reg)
            key = (item.bucket, size, *own)
            groups[key] += [item] * item.picture.repeats
        self._groups = [(key[0], key[1], groups[key]) for key in sorted(groups)]
        self._order: tuple[int, list[tuple[Bucket, tuple[Item, ...]]]] | None = None

    @property
    def batches_per_epoch(self) -> int:
        """How many batches show every item once (times its repeats); the same for every epoch."""
        return sum(-(-len(items) // size) for _, size, items in self._groups)

    def batch_at(self, index: int) -> Batch:
        """Batch number `index` (from 0): a pure function of the items, the batch size and the seed."""
        epoch, place = divmod(index, self.batches_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._shuffled(epoch))
        bucket, items = self._order[1][place]
        return Batch(index, epoch, bucket, items)

    def captions(self, batch: Batch, variants: int | None = None) -> list[str]:
        """The prompts of `batch`, one per item; `variants` limits them to `prompts(variants)`."""
        return [
            caption_for(
                item.picture,
                item.config,
                seed=self.seed,
                # Repeats and mirrored copies may share a batch: the place keeps their draws apart.
                draw=batch.index * self.largest_size + place,
                variants=variants,
            )
            for place, item in enumerate(batch.items)
        ]

    def prompts(self, variants: int = 1) -> list[str]:
        """Every prompt that `captions` can return with `variants`, each once: what a text cache must hold."""
        distinct = {(one.picture.dataset, one.picture.name, one.picture.caption): one for one in self.items}
        captioned = [(item.picture, item.config) for item in distinct.values()]
        return possible_captions(captioned, seed=self.seed, variants=variants)

    def buckets(self) -> dict[Bucket, int]:
        """How many items each bucket shows per epoch, from the largest bucket to the smallest."""
        counts: Counter[Bucket] = Counter()
        for bucket, _, items in self._groups:
            counts[bucket] += len(items)
        return dict(sorted(counts.items(), key=lambda entry: (-entry[0].pixels, entry[0])))

    def shapes(self) -> dict[Shape, int]:
        """How many batches of each shape an epoch has, from the most pixels per batch to the fewest."""
        counts: Counter[Shape] = Counter()
        for bucket, size, items in self._groups:
            whole, rest = divmod(len(items), size)
            counts.update({Shape(bucket, size): whole, Shape(bucket, rest): 1})
        real = [(shape, count) for shape, count in counts.items() if shape.size and count]
        return dict(sorted(real, key=lambda one: one[0].order))

    def tour(self) -> list[Batch]:
        """The fullest batch of each bucket, from the most pixels to the fewest, to try them out.

        They have no place in the run; the first has the first of `shapes`.
        """
        batches = [Batch(0, 0, bucket, tuple(items[:size])) for bucket, size, items in self._groups]
        found: dict[Bucket, Batch] = {}
        for batch in sorted(batches, key=lambda batch: batch.shape.order):
            found.setdefault(batch.bucket, batch)
        return list(found.values())

    def largest_bucket(self) -> Bucket:
        """The bucket with the most pixels."""
        return next(iter(self.buckets()))

    @property
    def largest_size(self) -> int:
        """The most items that any batch can have."""
        return max(size for _, size, _ in self._groups)

    def _shuffled(self, epoch: int) -> list[tuple[Bucket, tuple[Item, ...]]]:
        dice = chance(self.seed, "epoch", epoch)
        batches = []
        for bucket, size, items in self._groups:
            shuffled = list(items)
            dice.shuffle(shuffled)
            batches += [(bucket, tuple(shuffled[at : at + size])) for at in range(0, len(shuffled), size)]
        dice.shuffle(batches)
        return batches


def plan_batches(items: Iterable[Item], batch_size: int, seed: int) -> tuple[BatchPlan, BatchPlan | None]:
    """The plan of the training items, and that of the regularisation items (None without any).

    Raises:
        DataError: there is nothing to train on beside regularisation data.
    """
    items = list(items)
    regular = [item for item in items if not item.config.is_reg]
    regularisation = [item for item in items if item.config.is_reg]
    if regularisation and not regular:
        raise DataError(
            N_("Every data set is regularisation data (is_reg: true); expected at least one to train on.")
        )
    return (
        BatchPlan(regular, batch_size, seed),
        BatchPlan(regularisation, batch_size, seed) if regularisation else None,
    )


def _random_crop(name: str, resolution: int) -> tuple[float, float]:
    dice = chance("crop", name, resolution)
    return dice.random(), dice.random()
