"""Everything the doctor says, in English; `plafond.language` has the other languages."""

from __future__ import annotations

from plafond.language.said import N_
from plafond.plan.words import NAMES

WHEN = {
    "load": N_("while the model was loaded"),
    "quantize": N_("while weights were quantised"),
    "encode_text": N_("while captions were encoded"),
    "cache_latents": N_("while pictures were encoded for the cache"),
    "train": N_("in training"),
    "preview": N_("at a preview"),
    "save": N_("while saving"),
    None: N_("at a place that the log does not show"),
}
FIRST_STEPS = N_("in the first steps of training")

PHASES = {**NAMES, "quantize": N_("quantise")}

DOES_NOT_FIT = N_("The card's memory was not enough {when}.")
BUCKET_PEAK = N_(
    "The card's memory was not enough {when}, after {steps} steps that went well: a batch took more than those before,"
    " most likely one of the largest bucket."
)
VIDEO_FRAMES = N_(
    "The card's memory was not enough {when}: it grows with the number of frames, of which there are up to {frames}"
    " here."
)
OTHER_PROCESS = N_("Something else holds {foreign} of the card, so that too little was left {when}.")
FRAGMENTATION = N_(
    "The card's memory is in pieces: {idle} were reserved and unused, but a request of {requested} found no place"
    " {when}."
)
REGRESSION = N_("The card's memory was not enough {when}, with a release that is known to take more memory.")
REGRESSION_HOST = N_("Main memory was not enough {when}, with a release that is known to take more of it.")
REFUSED = N_("The plan said that the job does not fit, so it was not started.")
SKIPPED_PREVIEW = N_("The card's memory was not enough {when}; the trainer went on without.")
HOST = {
    "host": N_("Main memory (RAM) was not enough {when}; the card's memory is not the problem."),
    "pinned": N_(
        "A CUDA call ran out of memory {when} without a request to the card: pinned main memory (RAM) ran out, not the"
        " card's."
    ),
    "commit": N_(
        "A request of {requested} failed {when} although {free} of the card were free: main memory or its page file is"
        " at its limit."
    ),
    "killed": N_("The system ended the process {when}, as it does when main memory (RAM) runs out."),
    "crashed": N_(
        "Windows ended the process {when} (access violation): most often main memory or the page file ran out."
    ),
    "shared_memory": N_("The data loader's workers ran out of shared memory (/dev/shm) {when}."),
}
SPILL = N_(
    "No error, but from step {step} on a step takes {slow} s instead of {fast} s and stays so: the card is full, and"
    " the driver moves what does not fit to main memory."
)
SLOWER = N_(
    "No error, but from step {step} on a step takes {slow} s instead of {fast} s. The driver does not spill to main"
    " memory on Linux, so look at heat, the data loader and other processes first."
)
LIBRARY = N_("A library could not get its working memory, which means that the card was full {when}.")
WARNED = N_("The allocator warned that memory was short before the error that ended the run {when}.")
MISSING_CACHE = N_("The missing cache file is only what follows: encoding ran out of memory before.")
FIGURES = N_("The request was {requested}; {free} of {total} were free.")
GAVE_UP = N_("The trainer skipped batches that did not fit, then stopped; each skipped batch is lost.")
SKIPPED = N_("The trainer skips batches that do not fit: they are lost, and training goes on without them.")
GOT_OVER = N_("Memory ran out on the way, and the run got over it.")
CHECKPOINTING_OFF = N_("Gradient checkpointing is off, which takes the most memory of all settings.")

NOT_MEMORY = {
    "disk": N_("Not a memory problem: the disk is full."),
    "access": N_(
        "Not a memory problem: the model is gated or private; accept its terms and log in to Hugging Face."
    ),
    "name": N_("Not a memory problem: there is no model of this name on Hugging Face, or it is private."),
    "network": N_("Not a memory problem: a download failed."),
    "driver": N_("Not a memory problem: the driver, CUDA and PyTorch do not go together on this machine."),
    "unsupported": N_(
        "Not a memory problem: an operation is not there for this GPU, number format or installation; choose another"
        " kind of attention, do not compile, or install the matching package."
    ),
    "device_fault": N_(
        "Not a memory problem: the GPU reported a fault, from a bug, a driver or unstable hardware."
    ),
    "dtype": N_("Not a memory problem: number formats or devices of tensors do not match."),
    "shape": N_("Not a memory problem: the shapes of tensors do not match."),
    "nan": N_(
        "Not a memory problem: the loss is no longer a number; look at the learning rate and number format."
    ),
    "image": N_("Not a memory problem: a picture or video of the data set is damaged."),
    "weights": N_("Not a memory problem: a file of weights is damaged or incomplete; download it again."),
    "other_weights": N_("Not a memory problem: the weights in a file are those of another model or form."),
    "encoding": N_(
        "Not a memory problem: a text file, such as a caption or the configuration, is not in UTF-8."
    ),
    "cache": N_(
        "Not a memory problem: a file is missing in the cache; delete the cache and let it be made again."
    ),
    "missing": N_("Not a memory problem: a file or folder is not there."),
    "permission": N_("Not a memory problem: a file or folder may not be read or written."),
    "empty": N_("Not a memory problem: no data was found to train on."),
    "config": N_("Not a memory problem: the configuration cannot be used as written."),
    "install": N_("Not a memory problem: a Python package is missing or does not fit the others."),
    "database": N_("Not a memory problem: the user interface's database was locked."),
    "processes": N_(
        "Not a memory problem by what the log shows: the processes of the run could not reach each other; look at what"
        " each of them said before."
    ),
    "stopped": N_("Not a memory problem: the run was stopped by its user or from outside."),
    "error": N_("Not a memory problem by what the log shows: the run ended with {error}."),
}

NOTHING_FAILED = N_("Nothing failed in this log.")
WEAK_SAMPLES = N_(
    "If samples look weak, look at the data set, captions, rank, steps, and whether previews are made like your own"
    " pictures: checkpointing never changes quality."
)
EMPTY = N_("The log is empty.")
ENDS = N_(
    "The log ends {when} without an error. If the process is gone, see its exit status and the system's log: a process"
    " that the system ended leaves no message."
)
LAUNCHER = N_(
    "The log only says that a program it started failed; the reason stands in what that program printed, which is not"
    " here."
)
CRASHED = N_(
    "The process crashed {when} without a message. A library or driver that does not fit is the usual reason; main"
    " memory that runs out is a rarer one."
)
NO_SENSE = N_("The log has no failure that is known here, and no sign that the run was completed.")

AGREES = N_("The plan agrees: {phase} takes {needs} of {ceiling}.")
ELSEWHERE = N_(
    "By plafond's own plan the first phase that does not fit is another: {phase} takes {needs} of {ceiling}."
)
FITS = N_(
    "By plafond's own plan the job fits: {phase} takes the most, {needs} of {ceiling}. Another trainer may keep more on"
    " the card, or something outside the job takes memory."
)

ELSEWHERE_THERE = N_(
    "By the plan of AI Toolkit's run the first phase that does not fit is another: {phase} takes {needs} of {ceiling}."
)
FITS_THERE = N_(
    "By the plan of AI Toolkit's run the job fits: {phase} takes the most, {needs} of {ceiling}. Something outside the"
    " job may take memory."
)

WHY = {
    "checkpointing_on": N_(
        "blocks are recomputed in the backward pass instead of being kept; quality is the same"
    ),
    "leaner_plan": N_("blocks keep less for the backward pass; quality is the same"),
    "smaller_batch": N_("fewer pictures at a time; accumulation keeps the effective batch"),
    "cache_text_unload_te": N_("captions are encoded once, and the text encoder leaves the card"),
    "cheaper_preview": N_("smaller previews, fewer steps, or none; training is not touched"),
    "tiled_vae": N_("pictures are encoded and decoded in tiles"),
    "expandable_segments": N_(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True keeps free memory in one piece"
    ),
    "stream_blocks": N_(
        "weights wait in main memory and come to the card when they are needed (low VRAM, block swap)"
    ),
    "quantize": N_("the base model's weights take 8 or 4 bits; quality may change"),
    "quantize_te": N_("the text encoder's weights take 8 or 4 bits; quality may change"),
    "eight_bit_optimizer": N_("the optimizer's state takes a quarter; quality may change"),
    "drop_top_bucket": N_("nothing is trained at the highest resolution any more; quality may change"),
    "fewer_frames": N_("memory grows with the number of frames; motion may be learnt less well"),
    "smaller_rank": N_("a smaller LoRA, with its gradients and optimizer state; quality may change"),
    "free_other_process": N_(
        "close what else uses the card: browsers, other user interfaces, runs that still hang"
    ),
    "more_host_ram": N_(
        "give the process more main memory: a larger page file, WSL or container limit, or more RAM"
    ),
    "cap_below_spill": N_(
        "switch the driver's fallback to system memory off, or set a ceiling: failing is better"
    ),
    "update_or_pin": N_("another release takes less memory"),
    "not_memory": N_("no memory setting changes this; mend what the quoted line names"),
}
WHY_KNOWN = N_("{effect} (reported: {source})")
WHY_SHARED = N_("start the container with a larger /dev/shm (--shm-size), or take fewer loader workers")
WHY_SMALLER_VAE_BATCH = N_("one picture at a time is encoded")

SURE = {"high": N_("sure"), "medium": N_("fairly sure"), "low": N_("not sure")}
HEADINGS = {
    "evidence": N_("It rests on:"),
    "line": N_("line {number}"),
    "remedies": N_("What to do, best first:"),
    "saves": N_("saves {size}"),
}
