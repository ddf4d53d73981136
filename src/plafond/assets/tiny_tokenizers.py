"""Tokenizers of the tiny Flux base: whole tokens for common words, bytes for everything else."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import CLIPTokenizer, PreTrainedTokenizerFast

from plafond.assets import scenes

T5_LENGTH = 32
CLIP_LENGTH = 32
END = "</w>"

COMMON_WORDS = """
a about above across after again against all along also among an and animal another any apple arch arm around
art artist asleep astronaut at autumn baby back background bag ball balloon banana band bark basket bath beach
bear beard beautiful bed bedroom beer behind beige bell below bench beside between bicycle big bike bird black
blanket blond blue blurred blurry board boat body book boots bottle bottom bowl box boy branch brand bread brick
bridge bright bronze brown brush building bus bush butterfly by cafe cake camera candle candid cap car card
carpet cartoon castle cat cats cave centre center ceramic chair chalk charcoal cheese cherry chest chicken child
children chinese chocolate church cinematic circle city clay clean clear close closed closeup cloth clothes
cloud clouds cloudy coast coat coffee coin cold collar colour color colourful colorful concept cookie copper
corner cottage cotton couch countryside cow crayon cream cross crowd cup curly curtain cushion cute cyan dark
dawn day deep deer desert desk detail detailed diagonal digital dinner dirt dish dog dogs doll door dots dotted
down dragon dramatic drawing dress drink dusk ear ears east egg elephant empty engraving evening eye eyes face
fairy fantasy far farm fast feather feet felt fence field figure figurine film fire fireplace fish flag flame
flat floor flower flowers flying fog food foot for forest fork fountain four fox frame from front fruit full fur
furniture furry galaxies galaxy garden gate geometric giant gift ginger girl glass glasses gloves glowing gold
golden graffiti grain grass gray green grey ground group guitar hair hall hand hands happy hard hat head heart
helmet her high hill hills his hold holding home hood horizon horse hot house ice icon illustration image in
indoor indoors ink inside insect interior into iron is island it its jacket jar jeans juice jumping jungle
kitchen kitten knife knight lady lake lamp landscape laptop large laughing lawn leaf leather leaves left leg
lemon letter light lighthouse lighting lightning line lines lion lips little log logo long looking low lying
machine macro magazine magic man map marble market mask mat meadow meal medium men metal middle minimal mirror
mist modern monster monkey moon morning mosaic mountain mountains mouse mouth moustache mug mural museum
mushroom music muzzle near neck neon nest new next night no noise north nose nature ocean of office oil old on
one open orange origami outdoor outdoors outside over owl page paint painted painting palace panda paper parade
park parrot party pastel path pattern paw paws pen pencil people person pet photo photograph photography picture
pig pillow pine pink pixel pizza place plain plane planet plant plastic plate playing plush pond pony pool
porcelain portrait poster pot pottery profile puppy purple quiet rabbit rain rainbow rat real realistic red
reflection render rest resting restaurant retina retro ring river road robot rock rocket rocks roof room rope
rose rough round rug running sad sand sandy scarf scene school screen sculpture sea seat seated shadow sharp
sheep shelf shell ship shirt shoe shoes shop short shot shoulder side sign silhouette silk silver simple sitting
skateboard sketch skin sky sleeping sleepy slippers small smile smiling smoke smooth sneaker snow soap socks
sofa soft some south space sparkling spider spoon spots spotted spring square squirrel stage stained stairs
standing star stars statue steam steel stone storm straight stream street stripe striped stripes strong studio
style suit summer sun sunflower sunglasses sunlight sunny sunrise sunset surface sweater swimming sword table
tabby tail taking tall tan tea teapot teddy teeth temple tent texture textured that the their there thick thin
this three tiger tile tiles tiny to top torch tower town toy toys track traditional train tree trees triangle
truck trunk tulip turquoise turtle two umbrella under up urban vase vegetable vehicle very view vintage violet
violin walking wall wallpaper warm watch water watercolour watercolor waterfall wave waves wearing wedding west
wet whale wheel whiskers white wide wild wind window wine wing wings winter with without wizard wolf woman women
wood wooden wool workshop worn woven writing yarn yellow young zebra
""".split()  # noqa: SIM905


def vocabulary_words() -> list[str]:
    """Lower-case words that are single tokens, sorted: the scenes' words and common caption words."""
    words = set(COMMON_WORDS)
    for photo in scenes.PHOTOS:
        for text in photo.captions:
            words.update(text.replace(",", " ").split())
    for group in (scenes.SHAPES, scenes.BACKGROUNDS, scenes.PATTERNS, scenes.PLACES):
        for phrase in group:
            words.update(phrase.split())
    return sorted(words)


@lru_cache(maxsize=1)
def _byte_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE in which every vocabulary word ends as one token.

    Merges join the commonest pair, the lowest ids first among equals. (The trainer of the tokenizers library
    breaks ties differently from one run to the next, which would give a trained model other ids.)
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: index for index, token in enumerate(alphabet + [letter + END for letter in alphabet])}
    spelt = [[*word[:-1], word[-1] + END] for word in vocabulary_words()]
    merges: list[tuple[str, str]] = []
    while True:
        counts = Counter(pair for word in spelt for pair in pairwise(word))
        if not counts:
            break
        left, right = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        merges.append((left, right))
        ids.setdefault(left + right, len(ids))
        for word in spelt:
            k = 0
            while k < len(word) - 1:
                if (word[k], word[k + 1]) == (left, right):
                    word[k : k + 2] = [left + right]
                k += 1
    for token in ("<|startoftext|>", "<|endoftext|>"):
        ids[token] = len(ids)
    return ids, merges


def build_clip_tokenizer() -> CLIPTokenizer:
    """CLIP tokenizer of 32 tokens at most; any text is spelt out in bytes where no word matches."""
    vocab, merges = _byte_pairs()
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=CLIP_LENGTH)


def build_t5_tokenizer() -> PreTrainedTokenizerFast:
    """T5-style (Unigram, "</s>" at the end) tokenizer of 32 tokens at most, with byte fallback.

    transformers' own T5Tokenizer class turns byte fallback off when it loads, hence the generic class.
    """
    pieces: dict[str, float] = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0}
    pieces.update({f"<0x{byte:02X}>": 0.0 for byte in range(256)})
    pieces.update({f"▁{word}": -8.0 for word in vocabulary_words()})
    # Pieces of words spell unknown ones in fewer tokens than letters do, and cost more than a whole word.
    for left, right in _byte_pairs()[1]:
        piece = (left + right).removesuffix(END)
        if piece.isascii() and 1 < len(piece) < 5:
            pieces.setdefault(piece, -9.0)
    pieces.update({chr(code): -10.0 for code in range(33, 127) if chr(code).lower() == chr(code)})
    pieces["▁"] = -10.0
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=2, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(",", behavior="isolated"),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first"),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="first")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        model_max_length=T5_LENGTH,
    )


def save_tokenizers(folder: Path) -> None:
    """Write both tokenizers where FluxPipeline looks for them: ``tokenizer`` (CLIP), ``tokenizer_2`` (T5)."""
    build_clip_tokenizer().save_pretrained(folder / "tokenizer")
    build_t5_tokenizer().save_pretrained(folder / "tokenizer_2")
