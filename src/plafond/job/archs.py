"""Architectures that AI Toolkit has a name for. Which of them can be trained is for the families to say."""

from __future__ import annotations

from plafond.families import families

_AI_TOOLKIT = frozenset(
    {
        *("sd1", "sd2", "sd3", "sdxl", "vega", "ssd", "pixart", "pixart_sigma", "auraflow"),
        *("flux", "flex2", "flux_kontext", "flux2", "flux2_klein_4b", "flux2_klein_9b"),
        *("chroma", "chroma_radiance", "zeta_chroma"),
        *("wan21", "wan21_i2v", "wan22_5b", "wan22_14b", "wan22_14b_i2v"),
        *("qwen_image", "qwen_image_edit", "qwen_image_edit_plus"),
        *("hidream", "hidream_e1", "hidream_o1", "omnigen2", "lumina2", "cogview4", "f-lite"),
        *("zimage", "zimage_l2p", "ltx2", "ltx2.3", "ltx2.5", "minimax_h3", "minimax_h3_ref2va"),
        *("ernie_image", "nucleus_image", "ideogram4", "krea2", "prx_pixel", "mageflow", "mageflow_edit"),
        *("boogu_image", "boogu_image_edit", "anima", "ace_step_15", "ace_step_15_xl"),
    }
)

ALIASES: dict[str, str] = {"flex1": "flux", "sd15": "sd1"}
"""Other names of an architecture."""


def archs() -> frozenset[str]:
    """Every architecture that has a name: AI Toolkit's, and those that a family adds."""
    return _AI_TOOLKIT.union(*(family.archs for family in families()))


LEGACY_FLAGS: dict[str, str] = {
    "is_flux": "flux",
    "is_xl": "sdxl",
    "is_v2": "sd2",
    "is_v3": "sd3",
    "is_pixart": "pixart",
    "is_pixart_sigma": "pixart_sigma",
    "is_auraflow": "auraflow",
    "is_lumina2": "lumina2",
    "is_ssd": "ssd",
    "is_vega": "vega",
}
"""`model.is_flux: true` and its like, from before there was `arch`."""

TEXT_ENCODER_SEES_IMAGES: frozenset[str] = frozenset({"qwen_image_edit", "boogu_image_edit"})
"""Their prompt embedding depends on the control image, so one embedding cannot stand for all pictures."""
