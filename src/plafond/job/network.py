"""`network`: the adapter that is trained."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema

from plafond.job.section import EXPECTED, Flag, Input, Names, Section, Texts, refused
from plafond.language.said import N_, Said

NETWORK_TYPE = Names(
    noun=N_("a network type"),
    accepted={"lora": "lora", "lierla": "lora", "lokr": "lokr", "dora": "dora"},
    known={"fullrank": "lokr", "locon": "lora", "lycoris": "lokr", "lorm": "lora"},
)


def _factor(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1 and value != -1:
        raise refused(EXPECTED, expected=Said(N_("-1 or at least 1")), found=value)
    return value


Factor = Annotated[int, BeforeValidator(_factor), WithJsonSchema({"type": "integer", "minimum": -1})]


class NetworkKwargs(Section):
    """Which layers of the model get an adapter."""

    ignore_if_contains: Texts = Field(
        (), description="Layers whose dotted name contains one of these texts get no adapter."
    )
    only_if_contains: Texts = Field(
        (),
        description="When given, only layers whose dotted name contains one of these texts get an adapter.",
    )


class NetworkConfig(Section):
    """The low-rank adapter. A job without a network asks for full fine-tuning."""

    inputs: ClassVar = {
        "rank": Input(
            schema={"type": "integer", "minimum": 1},
            description="Another name of linear; it wins.",
            into="linear",
            wins=True,
        ),
        "alpha": Input(
            schema={"type": "number", "exclusiveMinimum": 0},
            description="Default of linear_alpha.",
            into="linear_alpha",
        ),
    }

    type: Annotated[str, NETWORK_TYPE] = Field(
        "lora",
        description="Kind of adapter: low-rank (lora), with trained lengths (dora), Kronecker product (lokr).",
    )
    linear: int = Field(4, ge=1, description="Rank of the adapter.")
    linear_alpha: float = Field(
        1.0,
        gt=0,
        description="Numerator of the scale alpha/rank; transformers always use scale 1, as AI Toolkit does.",
    )
    conv: int | None = Field(
        None,
        ge=1,
        description="Rank of the adapters of UNets' convolutions; without it only attention gets adapters.",
    )
    conv_alpha: float | None = Field(None, gt=0, description="Numerator of their scale; conv when not given.")
    dropout: float | None = Field(
        None, ge=0, lt=1, description="Probability that an adapter's hidden value is zeroed while training."
    )
    lokr_full_rank: Flag = Field(
        True, description="Of a lokr: the second factor is a whole matrix, whatever the rank."
    )
    lokr_factor: Factor = Field(
        -1, description="Of a lokr: rows of its first factor; -1 for factors of nearly the same size."
    )
    transformer_only: Flag = Field(True, description="Adapt only the model's transformer blocks.")
    pretrained_lora_path: str | None = Field(
        None, description="A saved LoRA whose weights the training starts from."
    )
    network_kwargs: NetworkKwargs = Field(NetworkKwargs(), description="Which layers get an adapter.")
