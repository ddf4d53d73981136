"""Places of a run, as an out-of-memory error names them and as the doctor finds them in a log."""

from __future__ import annotations

from plafond.language.said import N_

LOADING = N_("while loading the model")
ENCODING_TEXT = N_("while encoding text")
CACHING_LATENTS = N_("while caching latents")
WARMING_UP = N_("while warming up, before the first step, on a batch of {batch} at {bucket}")
AT_STEP = N_("at step {step}, on a batch of {batch} at {bucket}")
UPDATING = N_("in the update of step {step}")
PREVIEWING = N_("in the previews after step {step}")
SAVING = N_("while saving")

BY_PHASE = {
    "load": (LOADING,),
    "encode_text": (ENCODING_TEXT,),
    "cache_latents": (CACHING_LATENTS,),
    "train": (WARMING_UP, AT_STEP, UPDATING),
    "preview": (PREVIEWING,),
    "save": (SAVING,),
}
