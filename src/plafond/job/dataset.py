"""`datasets[]`: folders of pictures or clips with captions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from plafond.job.section import Colour, Flag, Input, Resolutions, Section, TextOrTexts, one_name
from plafond.language.said import N_

_CONTROL = Input(
    schema={"type": "string"}, description="One more folder of control images.", into="control_path"
)


class DatasetConfig(Section):
    """One folder of training data and how it is read."""

    inputs: ClassVar = {
        "dataset_path": Input(
            schema={"type": "string"}, description="Another name of folder_path.", into="folder_path"
        ),
        "caption_type": Input(
            schema={"type": "string"}, description="Another name of caption_ext.", into="caption_ext"
        ),
        "control_path_1": _CONTROL,
        "control_path_2": _CONTROL,
        "control_path_3": _CONTROL,
    }

    folder_path: str = Field(description="Folder of pictures or clips, read with its subfolders.")
    type: Annotated[str, one_name(N_("a dataset type"), "image")] = Field(
        "image", description="Kind of dataset."
    )
    resolution: Resolutions = Field(
        (512,), description="Side of the square whose area pictures are scaled to; a list trains every size."
    )
    batch_size: int | None = Field(
        None, ge=1, description="Batch size of this dataset instead of train.batch_size."
    )
    buckets: Flag = Field(
        True, description="Sort pictures into buckets by their shape instead of cropping squares."
    )
    caption_ext: str = Field(".txt", description="Extension of the caption files, with or without the dot.")
    default_caption: str | None = Field(None, description="Caption of pictures without a caption file.")
    trigger_word: str | None = Field(
        None, description="Word put in front of captions that lack it; the job's trigger_word when not given."
    )
    caption_dropout_rate: float = Field(
        0.0, ge=0, le=1, description="Fraction of captions that are replaced by an empty one."
    )
    token_dropout_rate: float = Field(
        0.0, ge=0, le=1, description="Fraction of the comma-separated tags that are dropped."
    )
    shuffle_tokens: Flag = Field(False, description="Shuffle the comma-separated tags of a caption.")
    keep_tokens: int = Field(0, ge=0, description="How many tags at the front are never dropped or shuffled.")
    replacements: TextOrTexts = Field((), description='Text replaced in captions, each written "old|new".')
    random_triggers: TextOrTexts = Field(
        (), description="Words of which some are put behind each caption at random."
    )
    random_triggers_max: int = Field(1, ge=1, description="How many random triggers a caption gets at most.")
    use_short_captions: Flag = Field(False, description="Use the caption_short of a JSON index.")
    is_reg: Flag = Field(
        False, description="Regularisation data: trained on every second step, without trigger."
    )
    prior_reg: Flag = Field(
        False, description="Train towards what the model says without the adapter, instead of the pictures."
    )
    network_weight: float = Field(1.0, description="Strength of the adapter while training on this dataset.")
    loss_multiplier: float = Field(1.0, ge=0, description="Factor on the loss of this dataset.")
    num_repeats: int = Field(1, ge=1, description="How often each picture is seen per epoch.")
    flip_x: Flag = Field(False, description="Add a copy of each picture mirrored left to right.")
    flip_y: Flag = Field(False, description="Add a copy of each picture mirrored top to bottom.")
    random_crop: Flag = Field(False, description="Crop at a random place instead of the middle.")
    square_crop: Flag = Field(False, description="Crop squares even where buckets are on.")
    scale: float = Field(1.0, gt=0, description="Factor on the size of pictures before they get a bucket.")
    cache_latents: Flag = Field(False, description="Encode pictures once and keep the latents in memory.")
    cache_latents_to_disk: Flag = Field(
        False, description="Encode pictures once and keep the latents on disk."
    )
    cache_text_embeddings: Flag = Field(
        False, description="Encode captions once; train.cache_text_embeddings sets it for all datasets."
    )
    control_path: TextOrTexts = Field(
        (), description="Folder, or list of folders, of control images with the same file names."
    )
    full_size_control_images: Flag = Field(
        True, description="Give control images to the model at their own size."
    )
    control_transparent_color: Colour = Field(
        (0, 0, 0), description="Colour put behind transparent control images."
    )
    mask_path: str | None = Field(
        None, description="Folder of masks with the same file names; white is learnt."
    )
    alpha_mask: Flag = Field(False, description="Use the pictures' transparency as the mask.")
    invert_mask: Flag = Field(False, description="Swap black and white in masks.")
    mask_min_value: float = Field(0.0, ge=0, le=1, description="Smallest weight of a masked-out pixel.")
    inpaint_path: str | None = Field(
        None, description="Folder of pictures with the same file names, whose transparency is a hole to fill."
    )
    num_frames: int = Field(
        1, ge=1, description="Frames taken from a clip; more than 1 makes a video dataset."
    )
    fps: int = Field(24, ge=1, description="Frame rate that clips are read at.")
    shrink_video_to_frames: Flag = Field(True, description="Spread the frames evenly over the clip.")
    auto_frame_count: Flag = Field(False, description="Use as many frames as each clip has.")
    trim_auto_frame_count_tail: Flag = Field(
        True,
        description="With auto_frame_count: drop what is over at the end instead of spreading the frames.",
    )
    do_i2v: Flag = Field(False, description="Keep the first frame as a condition (image to video).")
    num_workers: int = Field(2, ge=0, description="Processes that read data ahead.")
    prefetch_factor: int = Field(2, ge=1, description="Batches that each of them reads ahead.")

    @property
    def has_clips(self) -> bool:
        """Whether clips are looked for beside pictures."""
        return self.num_frames > 1 or self.auto_frame_count

    @property
    def is_masked(self) -> bool:
        """Whether some places of its pictures may count less than others."""
        return self.mask_path is not None or self.alpha_mask
