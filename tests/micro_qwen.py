"""What tiny checkpoints of models with Qwen encoders share: a byte-level tokenizer with the chat template."""

from __future__ import annotations

from tokenizers import pre_tokenizers
from transformers import Qwen2Tokenizer

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)


def make_tokenizer(length: int) -> Qwen2Tokenizer:
    """One token per byte; at most `length` of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*letters, *SPECIAL))}
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        model_max_length=length,
        chat_template=CHAT,
        additional_special_tokens=list(SPECIAL[1:]),
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        unk_token=None,
    )


VOCABULARY = 256 + len(SPECIAL)
