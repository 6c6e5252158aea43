r"""How byte-level BPE vocabularies cut text into words before merging (key ``tokenizer.ggml.pre``).

The expressions are the ones of the models' own ``tokenizer.json`` files as quoted in llama.cpp's
``llama-vocab.cpp`` (ggml 0.25.3), which also supplies which names share one, which look whole words up
before merging, and which start with a BOS token. They are applied in turn; every match, and every gap
between matches, is a word.

Qwen's ``tokenizer.json`` files also bring text to normal form C first. A GGUF file does not say so and
llama.cpp does not do it, which makes a difference for decomposed accents only; the model was trained
with it, so it is done here.

Left out are the names whose splitting llama.cpp does in C++ code of its own (kimi-k2, afmoe), those
that are not byte-level (gemma4, sarvam-moe, whitespace), those of embedding models, and a few old ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from draftsmith.dsl.errors import RequestError
from draftsmith.gguf_file import shown


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Regular expressions in Oniguruma's syntax, and the habits that go with them."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges would make of it."""
    add_bos: bool = False
    """Whether a BOS token is put first where the file does not say."""
    nfc: bool = False
    """Whether text is brought to Unicode's normal form C first."""


_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s+(?!\S)|\s+"
_ASCII_PUNCTUATION: Final = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    """The expression that Llama 3 and Qwen 2 share but for the digits."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
        rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
    )


def _cased_words(suffix: str, digits: str) -> str:
    """The expression of GPT-4o and Tekken: words end where lower case turns to upper case."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}|"
        rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


_GPT2_WORDS: Final = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"

_DEFAULT: Final = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))
_GPT2: Final = PreTokenizer((_GPT2_WORDS,))
_STARCODER: Final = PreTokenizer((r"\p{N}", _GPT2_WORDS))
_LLAMA3: Final = PreTokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_DBRX: Final = replace(_LLAMA3, ignore_merges=False, add_bos=False)
_GLM4: Final = replace(_LLAMA3, add_bos=False)
_STABLELM2: Final = PreTokenizer((_words(r"\p{N}"),))
_QWEN2: Final = replace(_STABLELM2, nfc=True)
_QWEN35: Final = PreTokenizer(
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}",
    ),
    nfc=True,
)
_DEEPSEEK3: Final = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|"
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}",
    )
)
_TEKKEN: Final = PreTokenizer((_cased_words("", r"\p{N}"),), ignore_merges=True, add_bos=True)
_GPT4O: Final = PreTokenizer((_cased_words(_CONTRACTIONS + "?", r"\p{N}{1,3}"),))
_BAILING: Final = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|"
        rf" ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|{_SPACES}",
    )
)
_SEED_CODER: Final = PreTokenizer(
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}|"
        rf" ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}",
    )
)
_MINICPM5: Final = PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True)

PRE_TOKENIZERS: Final[dict[str, PreTokenizer]] = {
    name: pre
    for pre, names in (
        (_DEFAULT, "default"),
        (_GPT2, "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 trillion granite-docling"),
        (_STARCODER, "starcoder refact smollm codeshell exaone minerva-7b mellum2"),
        (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
        (_DBRX, "dbrx smaug-bpe chatglm-bpe"),
        (_GLM4, "glm4 glm5"),
        (_QWEN2, "qwen2"),
        (_STABLELM2, "stablelm2 deepseek-r1-qwen kormo megrez hunyuan solar-open grok-2"),
        (_QWEN35, "qwen35"),
        (_DEEPSEEK3, "deepseek-v3 joyai-llm hunyuan-dense hy_v4"),
        (_TEKKEN, "tekken"),
        (_GPT4O, "gpt-4o llama4 kanana2 minimax-m2"),
        (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
        (_SEED_CODER, "seed-coder"),
        (_MINICPM5, "minicpm5"),
    )
    for name in names.split()
}


def pre_tokenizer(name: str, where: str) -> PreTokenizer:
    """The pre-tokenizer called ``name``; RequestError, prefixed by ``where``, for one not known."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise RequestError(
            f"{where}: pre-tokenizer '{shown(name)}' is not known (key 'tokenizer.ggml.pre'); "
            f"known: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return found
