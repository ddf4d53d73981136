"""`model`: the frozen base model and how it is loaded."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from plafond.job.archs import ALIASES, ARCHS, LEGACY_FLAGS
from plafond.job.section import Flag, Input, Section, Settings, Texts
from plafond.job.wording import nearest, shown

QTYPES = (
    *("qfloat8", "qint8", "qint4", "qint2", "float8", "int8", "convrot8", "convrot4", "nvfp4"),
    *(f"uint{bits}" for bits in range(2, 9)),
    *(f"convrotint{bits}" for bits in range(2, 8)),
    *("convrotbitnet", "orbit2", "orbit3", "orbit4"),
    *("qfloat8_e4m3fn", "qfloat8_e4m3fnuz", "qfloat8_e5m2", "nf4"),
)
"""Names of quantised number formats; all are AI Toolkit's but nf4."""


def _qtype(value: str) -> str:
    # "uint3|org/repo/file.safetensors" names an accuracy recovery adapter as well; "" means none.
    name = value.split("|")[0].strip()
    if name in QTYPES or not name:
        return value
    near = nearest(name, QTYPES)
    hint = f"; did you mean {near}?" if near else ""
    message = f"expected a number format such as qfloat8, uint4 or nf4, found {shown(name)}{hint}"
    raise PydanticCustomError("sentence", "{sentence}", {"sentence": message})


Qtype = Annotated[
    str,
    AfterValidator(_qtype),
    WithJsonSchema({"anyOf": [{"enum": ["", *QTYPES]}, {"type": "string", "pattern": r"^[a-z0-9_]+ *\|"}]}),
]
Arch = Annotated[
    str, WithJsonSchema({"anyOf": [{"enum": sorted([*ARCHS, *ALIASES])}, {"type": "string", "pattern": ":"}]})
]


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
    quantize: Flag = Field(
        False, description="Store the frozen weights of the denoising model in fewer bits."
    )
    qtype: Qtype = Field("qfloat8", description="Number format of the quantised weights.")
    quantize_te: Flag = Field(
        False, description="Quantise the text encoder too; like quantize when not given."
    )
    qtype_te: Qtype = Field("qfloat8", description="Number format of the quantised text encoder.")
    quantize_kwargs: Settings = Field(
        {}, description="More settings; exclude lists layers that stay unquantised."
    )
    low_vram: Flag = Field(
        False, description="Load through main memory so that loading takes little GPU memory."
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
