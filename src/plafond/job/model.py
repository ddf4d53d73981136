"""`model`: the frozen base model and how it is loaded."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from pydantic.json_schema import WithJsonSchema

from plafond.job.archs import ALIASES, LEGACY_FLAGS, archs
from plafond.job.qtypes import QTYPES, format_of
from plafond.job.section import EXPECTED, Flag, Input, Section, Settings, Texts, refused
from plafond.job.wording import hinted, nearest, shown
from plafond.language.said import N_, Said


def _qtype(value: str) -> str:
    # "uint3|org/repo/file.safetensors" names an accuracy recovery adapter as well; "" means none.
    name = value.split("|")[0].strip()
    if name in QTYPES or not name:
        return value
    expected = Said(N_("a number format such as qfloat8, uint4 or nf4"))
    wrong = Said(EXPECTED, {"expected": expected, "found": shown(name)})
    raise refused(hinted(wrong, nearest(name, QTYPES)))


Qtype = Annotated[
    str,
    AfterValidator(_qtype),
    WithJsonSchema({"anyOf": [{"enum": ["", *QTYPES]}, {"type": "string", "pattern": r"^[a-z0-9_]+ *\|"}]}),
]


class _Named:
    """Marks the name of an architecture; which there are is found when somebody asks for the schema."""

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, object]:
        return {"anyOf": [{"enum": sorted([*archs(), *ALIASES])}, {"type": "string", "pattern": ":"}]}


Arch = Annotated[str, _Named()]


class ModelConfig(Section):
    """Which base model is trained on, and its precision."""

    inputs: ClassVar = {
        "auto_memory": Input(
            schema={"type": "boolean"},
            description="The older name of layer_offloading.",
            into="layer_offloading",
        ),
        **{
            flag: Input(
                schema={"type": "boolean"}, description=f"The older way to write arch: {arch}.", into="arch"
            )
            for flag, arch in LEGACY_FLAGS.items()
        },
    }
    derived: ClassVar = frozenset({"arch_tag"})

    name_or_path: str = Field(
        min_length=1, description="Hugging Face name, folder or file of the base model."
    )
    arch: Arch = Field("sd1", description="Architecture; a variant may follow a colon, as in zimage:turbo.")
    arch_tag: str | None = Field(None, description="The variant that followed the colon in arch.")
    is_v_pred: Flag = Field(
        False, description="Stable Diffusion: the model predicts v instead of noise, whatever its files say."
    )
    quantize: Flag = Field(
        False, description="Store the frozen weights of the denoising model in fewer bits."
    )
    qtype: Qtype = Field("qfloat8", description="Number format of the quantised weights.")
    quantize_te: Flag = Field(
        False, description="Quantise the text encoder too; like quantize when not given."
    )
    qtype_te: Qtype = Field("qfloat8", description="Number format of the quantised text encoder.")
    quantize_kwargs: Settings = Field(
        {}, description="exclude: patterns of the names of layers that stay unquantised, as *norm*."
    )
    low_vram: Flag = Field(
        False, description="Load through main memory, one layer at a time; plafond always does."
    )
    layer_offloading: Flag = Field(False, description="Keep frozen layers in main memory and stream them in.")
    layer_offloading_transformer_percent: float = Field(
        1.0, ge=0, le=1, description="Fraction of the denoising model's layers that is streamed."
    )
    layer_offloading_text_encoder_percent: float = Field(
        1.0, ge=0, le=1, description="Fraction of the text encoder's layers that is streamed."
    )
    assistant_lora_path: str | None = Field(
        None, description="A LoRA that is active while training and removed for previews."
    )
    extras_name_or_path: str | None = Field(
        None, description="Where text encoder, VAE and tokenizer come from; name_or_path when not given."
    )
    te_name_or_path: str | None = Field(None, description="Where the text encoder comes from.")
    vae_path: str | None = Field(None, description="Where the VAE comes from.")
    model_kwargs: Settings = Field({}, description="Options of the architecture.")
    ignore_if_contains: Texts = Field(
        (), description="Full fine-tune: parameters with these texts stay frozen."
    )
    only_if_contains: Texts = Field(
        (), description="Full fine-tune: only parameters with these texts are trained."
    )

    @property
    def weight_format(self) -> str | None:
        """Number format of the denoising model's frozen weights; None when they are not quantised."""
        return format_of(self.qtype) if self.quantize else None

    @property
    def text_format(self) -> str | None:
        """Number format of the text encoders' weights; None when they are not quantised."""
        return format_of(self.qtype_te) if self.quantize_te else None

    @property
    def unquantized(self) -> tuple[str, ...]:
        """Patterns of the names of the denoising model's layers that stay as they are."""
        return tuple(self.quantize_kwargs.get("exclude", ()))
