"""Tokenizers from GGUF metadata, judged by the Hugging Face tokenizer of the same model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest
from tokenizers import Tokenizer as HFTokenizer

from draftsmith.dsl.errors import GGUFError, MetadataError, RequestError
from draftsmith.gguf_file import GGUFFile
from draftsmith.tokenizer import BPETokenizer, NamesTokenizer, Tokenizer, load_tokenizer
from draftsmith.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.gguf_fuzz import gguf_bytes, kv, try_variants

SHARED = Path(__file__).resolve().parents[2] / "shared"
TINY = SHARED / "models" / "tiny-qwen3"
shared = [
    pytest.mark.shared,
    pytest.mark.skipif(not TINY.is_dir(), reason="the recorded reference data are not here"),
]


def _letters() -> list[str]:
    """The 256 stand-ins of GPT-2, by byte (https://github.com/openai/gpt-2, encoder.py)."""
    keep = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    free = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(free)) for b in range(256)]


LETTERS = _letters()
MERGES = ["t h", "th e", "Ġ the", "Ċ Ċ", "1 2", "12 3", "Ġ Ġ"]
SPECIALS = [
    ("<|endoftext|>", 3),
    ("<|im_start|>", 3),
    ("<|im_end|>", 3),
    ("<think>", 4),
    ("<think>\n", 4),
    ("[PAD0]", 5),
    ("<|mask|>", 3),
]
MERGED = [merge.replace(" ", "") for merge in MERGES]
TOKENS = [*LETTERS, *MERGED, *(name for name, _ in SPECIALS)]
TYPES = [1] * (256 + len(MERGED)) + [type for _, type in SPECIALS]
ID = {token: id for id, token in enumerate(TOKENS)}

Make = Callable[..., Tokenizer]


def entries(
    *more: bytes,
    model: str = "gpt2",
    pre: str | None = "qwen2",
    tokens: Sequence[str] = TOKENS,
    types: Sequence[int] | None = TYPES,
    merges: Sequence[str] | None = MERGES,
) -> list[bytes]:
    parts = [kv("general.architecture", "str", "qwen3"), kv("tokenizer.ggml.model", "str", model)]
    if pre is not None:
        parts.append(kv("tokenizer.ggml.pre", "str", pre))
    parts.append(kv("tokenizer.ggml.tokens", "arr[str]", tokens))
    if types is not None:
        parts.append(kv("tokenizer.ggml.token_type", "arr[i32]", types))
    if merges is not None:
        parts.append(kv("tokenizer.ggml.merges", "arr[str]", merges))
    return [*parts, *more]


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Sequence[bytes]], Tokenizer]:
    def from_entries(parts: Sequence[bytes]) -> Tokenizer:
        path = tmp_path / "vocab.gguf"
        path.write_bytes(gguf_bytes(parts))
        return load_tokenizer(GGUFFile.open(path))

    return from_entries


@pytest.fixture
def make(load: Callable[[Sequence[bytes]], Tokenizer]) -> Make:
    return lambda *more, **options: load(entries(*more, **options))


# --- against the model's own tokenizer ----------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(GGUFFile.open(TINY / "tiny-qwen3-f16.gguf"))


@pytest.fixture(scope="module")
def truth() -> HFTokenizer:
    return HFTokenizer.from_file(str(TINY / "tokenizer.json"))


def stream_all(tokenizer: Tokenizer, ids: Sequence[int], skip_special: bool = False) -> str:
    stream = tokenizer.stream(skip_special)
    return "".join([*(stream.push(id) for id in ids), stream.flush()])


def check_text(tiny: Tokenizer, truth: HFTokenizer, text: str) -> None:
    ids = tiny.encode(text)
    assert ids == truth.encode(text).ids
    assert tiny.decode(ids) == truth.normalizer.normalize_str(text)
    assert stream_all(tiny, ids) == tiny.decode(ids)


class TestTinyQwen3:
    pytestmark = shared

    def test_source_code(self, tiny: Tokenizer, truth: HFTokenizer) -> None:
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        files = [
            stdlib / name for name in ("argparse.py", "typing.py", "heapq.py", "html/entities.py", "this.py")
        ]
        lines = [line for file in files for line in file.read_text("utf-8").splitlines(keepends=True)]
        assert len(lines) > 5000
        for line in lines:
            check_text(tiny, truth, line)
        for file in files:
            check_text(tiny, truth, file.read_text("utf-8"))

    def test_unicode_nonsense(self, tiny: Tokenizer, truth: HFTokenizer) -> None:
        rng = random.Random(20)
        bits = [
            "<|im_end|>",
            "<|im_",
            "|>",
            " ",
            "   ",
            "\n",
            "\r\n",
            "\t",
            "'S",
            "'ſ",
            "'ll",
            "e\u0301",
            "İ",
            "\u0000",
        ]
        bits += ["漢字", "😀", "👩‍👩‍👧", "가", "각", "١٢", "Ⅻ", "\ufeff", "\u2028", "\x85", "\u00a0"]
        for _ in range(3000):
            text = ""
            for _ in range(rng.randrange(1, 40)):
                char = rng.randrange(rng.choice((0x80, 0x800, 0x3000, 0x110000)))
                text += rng.choice(bits) if rng.random() < 0.4 or 0xD800 <= char < 0xE000 else chr(char)
            check_text(tiny, truth, text)
            truth.encode_special_tokens = True
            plain = truth.encode(text).ids
            truth.encode_special_tokens = False
            assert tiny.encode(text, parse_special=False) == plain

    def test_any_tokens_decode_alike(self, tiny: Tokenizer, truth: HFTokenizer) -> None:
        """Also where the bytes are no UTF-8."""
        rng = random.Random(21)
        for _ in range(2000):
            ids = [rng.randrange(2048) for _ in range(20)]
            assert tiny.decode(ids) == truth.decode(ids, skip_special_tokens=False) == stream_all(tiny, ids)
            assert tiny.decode(ids, skip_special=True) == truth.decode(ids) == stream_all(tiny, ids, True)

    def test_recorded_prompts(self, tiny: Tokenizer) -> None:
        prompts = json.loads((TINY / "reference.json").read_text())["prompts"]
        assert len(prompts) == 8
        for prompt in prompts[1:]:
            assert tiny.encode(prompt["text"]) == prompt["ids"]
            assert tiny.decode(prompt["greedy"]) == prompt["greedy_text"]

    def test_special_tokens(self, tiny: Tokenizer) -> None:
        assert tiny.n_vocab == 2048
        assert (tiny.bos_id, tiny.eos_id, tiny.pad_id, tiny.eot_id, tiny.mask_id) == (
            2044,
            2044,
            2044,
            2046,
            None,
        )
        assert tiny.eog_ids == {2044, 2046}
        assert [tiny.is_special(id) for id in (0, 2043, 2044, 2047)] == [False, False, True, True]
        assert tiny.piece(2047) == b"<|mask|>"
        draft = SHARED / "models/tiny-qwen3-dflash/tiny-qwen3-dflash-f16.gguf"
        assert load_tokenizer(GGUFFile.open(draft)).mask_id == 2047


# --- byte-level BPE -----------------------------------------------------------------------------


def test_merges_and_bytes(make: Make) -> None:
    tokenizer = make()
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.encode("the the") == [ID["the"], ID["Ġthe"]]
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert [tokenizer.piece(id) for id in (0x20, 0xC3, ID["Ġthe"], ID["<think>\n"], ID["[PAD0]"])] == [
        b" ",
        b"\xc3",
        b" the",
        b"<think>\n",
        b"",
    ]
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""
    assert tokenizer.decode(np.array([ID["the"], 33])) == "the!"
    assert tokenizer.n_vocab == len(TOKENS)


def test_every_byte_has_a_token(make: Make) -> None:
    tokenizer = make()
    assert [tokenizer.piece(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_composes_accents_as_qwen_does_and_llama_does_not(make: Make) -> None:
    assert make(pre="qwen2").encode("e\u0301") == list("é".encode())
    assert make(pre="llama-bpe").encode("e\u0301", add_bos=False) == list("e\u0301".encode())


def test_special_tokens_in_text(make: Make) -> None:
    tokenizer = make()
    text = "a<|im_end|><think>\nb<|im_end"
    plain = list(b"<|im_end")
    assert tokenizer.encode(text) == [97, ID["<|im_end|>"], ID["<think>\n"], 98, *plain]
    # User-defined tokens are text: they are found in any case, and the longest one wins.
    assert tokenizer.encode(text, parse_special=False) == [97, *plain, *b"|>", ID["<think>\n"], 98, *plain]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == "a<think>\nb<|im_end"
    assert tokenizer.encode("[PAD0]") == list(b"[PAD0]"), "an unused token is never produced"


def test_text_never_merges_into_a_control_token(make: Make) -> None:
    names = ["<|", "im", "|>", "<|im", "<|im|>"]
    tokenizer = make(
        tokens=[*LETTERS, *names], types=[1] * 260 + [3], merges=["< |", "i m", "| >", "<| im", "<|im |>"]
    )
    assert tokenizer.encode("<|im|>") == [260]
    assert 260 not in tokenizer.encode("<|im|>", parse_special=False)


def test_bos_and_eos(make: Make) -> None:
    ids = [
        kv("tokenizer.ggml.bos_token_id", "u32", ID["<|im_start|>"]),
        kv("tokenizer.ggml.eos_token_id", "u32", 256),
    ]
    asks = [kv("tokenizer.ggml.add_bos_token", "bool", 1), kv("tokenizer.ggml.add_eos_token", "bool", 1)]
    bos = ID["<|im_start|>"]
    assert make(*ids).encode("a") == [97]
    assert make(*ids).encode("a", add_bos=True, add_eos=True) == [bos, 97, 256]
    assert make(*ids, *asks).encode("a") == [bos, 97, 256]
    assert make(*ids, *asks).encode("a", add_bos=False) == [97, 256]
    assert make(*ids, *asks).encode("a", add_bos=False, add_eos=False) == [97]
    # Llama 3 asks for a BOS token where its file does not say; this file does.
    assert make(*ids, pre="llama-bpe").encode("a") == [bos, 97]
    assert make(*ids, kv("tokenizer.ggml.add_bos_token", "bool", 0), pre="llama-bpe").encode("a") == [97]
    with pytest.raises(RequestError, match=r"a beginning-of-text token is asked for.*bos_token_id"):
        make().encode("a", add_bos=True)


def test_end_of_generation(make: Make) -> None:
    by_name = make()
    assert by_name.eog_ids == {ID["<|endoftext|>"], ID["<|im_end|>"]}
    assert by_name.eot_id == ID["<|im_end|>"] and by_name.eos_id is None
    by_key = make(
        kv("tokenizer.ggml.eos_token_id", "u32", 5),
        kv("tokenizer.ggml.eot_token_id", "u32", 6),
        kv("tokenizer.ggml.eom_token_id", "u32", 7),
        kv("tokenizer.ggml.fim_sep_token_id", "u32", 8),
        kv("tokenizer.ggml.padding_token_id", "u32", 9),
        kv("tokenizer.ggml.mask_token_id", "u32", 10),
    )
    assert by_key.eog_ids == {5, 6, 7, 8, ID["<|endoftext|>"], ID["<|im_end|>"]}
    assert (by_key.eos_id, by_key.eot_id, by_key.pad_id, by_key.mask_id) == (5, 6, 9, 10)


@pytest.mark.parametrize(
    ("names", "end"),
    [
        (["<|end|>", "<|return|>"], {"<|end|>", "<|return|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|calls|>", "<|flush|>"], {"<|calls|>", "<|flush|>"}),
        (["</s>", "<eos>"], {"</s>", "<eos>"}),
        (["</s>", "<|tool_response>"], {"<|tool_response>"}),
        (
            ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<s>"],
            {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
        ),
    ],
)
def test_end_of_generation_by_name(make: Make, names: list[str], end: set[str]) -> None:
    """The exceptions that llama.cpp makes for gpt-oss, Solar Open and Gemma 4."""
    tokenizer = make(tokens=[*LETTERS, *names], types=[1] * 256 + [3] * len(names), merges=[])
    assert {names[id - 256] for id in tokenizer.eog_ids} == end


def test_an_end_token_of_the_wrong_type_is_control(make: Make) -> None:
    tokenizer = make(tokens=[*LETTERS, "<|im_end|>"], types=[1] * 257, merges=[])
    assert tokenizer.is_special(256) and tokenizer.encode("<|im_end|>") == [256]


def test_no_such_token_is_written_as_minus_one(make: Make) -> None:
    tokenizer = make(
        kv("tokenizer.ggml.padding_token_id", "u32", 2**32 - 1), kv("tokenizer.ggml.bos_token_id", "i32", -1)
    )
    assert tokenizer.pad_id is None and tokenizer.bos_id is None


def test_chat_template(make: Make) -> None:
    assert make().chat_template is None
    assert make(kv("tokenizer.chat_template", "str", "{{ x }}\n")).chat_template == "{{ x }}\n"


def test_incomplete_vocabulary(make: Make) -> None:
    tokenizer = make(tokens=["a", "b", "ab", "<0>"], types=None, merges=["a b", "< 0"])
    assert tokenizer.encode("abba") == [2, 1, 0]
    with pytest.raises(RequestError, match="cannot encode 'abc': the vocabulary has no token for byte 0x63"):
        tokenizer.encode("abc")
    assert tokenizer.decode([3, 2]) == "<0>ab"


def test_lone_surrogates(make: Make) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+DC80 at character 2"):
        make().encode("ab\udc80")


def test_ids_outside(make: Make) -> None:
    tokenizer = make()
    for id in (-1, len(TOKENS)):
        for use in (
            tokenizer.piece,
            tokenizer.is_special,
            tokenizer.stream().push,
            lambda id: tokenizer.decode([id]),
        ):
            with pytest.raises(
                RequestError, match=rf"token id {id} is outside the vocabulary of {len(TOKENS)}"
            ):
                use(id)


def test_stream_holds_back_incomplete_characters(make: Make) -> None:
    stream = make().stream()
    emoji = "😀".encode()
    assert [stream.push(byte) for byte in (97, *emoji, 98)] == ["a", "", "", "", "😀", "b"]
    assert stream.flush() == ""
    assert [stream.push(byte) for byte in emoji[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(97) == "a", "a flushed stream starts afresh"
    assert stream.push(0xE6) + stream.push(97) == "\ufffda", "a character that is broken off"


def test_stream_without_special_tokens(make: Make) -> None:
    tokenizer = make()
    ids = [97, 0xC3, ID["<|im_end|>"], 0xA9]
    assert stream_all(tokenizer, ids, skip_special=True) == "aé" == tokenizer.decode(ids, skip_special=True)
    assert stream_all(tokenizer, ids) == "a\ufffd<|im_end|>\ufffd" == tokenizer.decode(ids)


# --- pre-tokenizers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_splitting_loses_nothing(make: Make, name: str) -> None:
    """Every expression is valid, and the words put together are the text."""
    tokenizer = make(pre=name)
    rng = random.Random(name)
    bits = [
        "don't",
        "I'LL",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "123",
        "4567",
        "HelloWorld",
        "é",
        "漢字",
        "カナ",
        "π",
        "!?",
        "/*",
    ]
    for _ in range(200):
        text = "".join(rng.choice(bits) for _ in range(rng.randrange(20)))
        assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'll see 12345  x", ["I", "'ll", "Ġsee", "Ġ12345", "Ġ", "Ġx"]),
        ("default", "I'll see 12345 x!", ["I", "'", "ll", "Ġsee", "Ġ", "123", "45", "Ġx", "!"]),
        ("starcoder", "x=12 y", ["x", "=", "1", "2", "Ġy"]),
        ("qwen2", "I'LL see 123\n\n(x)", ["I", "'LL", "Ġsee", "Ġ", "1", "2", "3", "ĊĊ", "(x", ")"]),
        ("llama-bpe", "see 12345(x)\n", ["see", "Ġ", "123", "45", "(x", ")Ċ"]),
        ("deepseek-v3", "see 12345_x漢 a", ["see", "Ġ", "123", "45", "_x", "æ¼¢", "Ġa"]),
        ("tekken", "HelloWorld's 12", ["Hello", "World", "'s", "Ġ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 12/\n", ["Hello", "World's", "Ġ", "12", "/Ċ"]),
        ("qwen35", "का x", ["à¤ķà¤¾", "Ġx"]),
        ("qwen2", "का x", ["à¤ķ", "à¤¾", "Ġx"]),
        ("seed-coder", "x)\n", ["x", ")", "Ċ"]),
        ("minicpm5", "12345", ["123", "45"]),
    ],
)
def test_splitting(make: Make, name: str, text: str, words: list[str]) -> None:
    tokenizer = make(pre=name)
    assert isinstance(tokenizer, BPETokenizer)
    assert [word for word, _ in tokenizer._bpe.pre_tokenizer.pre_tokenize_str(text)] == words


def test_whole_words_before_merges(make: Make) -> None:
    """Llama 3 takes a word that is a token, though no merges lead to it; Qwen does not."""
    options = {"tokens": [*LETTERS, "cat"], "types": None, "merges": []}
    assert make(pre="llama-bpe", **options).encode("cat", add_bos=False) == [256]
    assert make(pre="qwen2", **options).encode("cat") == list(b"cat")


def test_missing_pre_tokenizer_warns(make: Make) -> None:
    with pytest.warns(
        UserWarning, match=r"'tokenizer\.ggml\.pre' is missing, text is split in the 'default' way"
    ):
        tokenizer = make(pre=None)
    assert tokenizer.encode("the") == [ID["the"]]


# --- token names --------------------------------------------------------------------------------


def test_names(load: Callable[[Sequence[bytes]], Tokenizer]) -> None:
    names = [f"tok_{i}" for i in range(8)]
    mask = kv("tokenizer.ggml.mask_token_id", "u32", 7)
    tokenizer = load(entries(mask, model="test", pre=None, tokens=names, types=None, merges=None))
    assert isinstance(tokenizer, NamesTokenizer)
    assert tokenizer.encode(" tok_3\ntok_0 ") == [3, 0]
    assert tokenizer.encode(tokenizer.decode([5, 6, 5])) == [5, 6, 5]
    assert tokenizer.decode([3, 0]).split() == ["tok_3", "tok_0"]
    assert stream_all(tokenizer, [3, 0]) == tokenizer.decode([3, 0])
    assert (tokenizer.n_vocab, tokenizer.mask_id, tokenizer.eos_id) == (8, 7, None)
    assert tokenizer.eog_ids == frozenset() and not tokenizer.is_special(7)
    with pytest.raises(
        RequestError, match=r"no text tokenizer \(tokenizer.ggml.model = test\), .*'tok_0 tok_7', found 'Hi'"
    ):
        tokenizer.encode("Hi there")


@pytest.mark.parametrize("model", ["none", "no_vocab"])
def test_a_vocabulary_of_known_size_only(load: Callable[[Sequence[bytes]], Tokenizer], model: str) -> None:
    parts = [kv("general.architecture", "str", "dflash"), kv("tokenizer.ggml.model", "str", model)]
    tokenizer = load([*parts, kv("dflash.vocab_size", "u32", 100)])
    assert tokenizer.n_vocab == 100
    assert tokenizer.encode("tok_99 tok_0") == [99, 0] and tokenizer.decode([42]).strip() == "tok_42"
    with pytest.raises(RequestError, match="found 'tok_100'"):
        tokenizer.encode("tok_100")
    with pytest.raises(MetadataError, match=r"key 'dflash\.vocab_size' is missing"):
        load(parts)
    with pytest.raises(MetadataError, match="is 4000000000, expected 1 to 10000000"):
        load([*parts, kv("dflash.vocab_size", "u32", 4_000_000_000)])


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded reference data are not here")
def test_recorded_models_have_names() -> None:
    tokenizer = load_tokenizer(GGUFFile.open(SHARED / "gold/dflash_nvfp4/draft.gguf"))
    assert (tokenizer.n_vocab, tokenizer.mask_id) == (112, 111)
    assert tokenizer.encode("tok_60 tok_111") == [60, 111]


# --- faults -------------------------------------------------------------------------------------

ARCH = kv("general.architecture", "str", "qwen3")
FAULTS = {
    "no model": ([ARCH], MetadataError, r"key 'tokenizer\.ggml\.model' is missing"),
    "model is a number": (
        [kv("tokenizer.ggml.model", "u32", 1)],
        MetadataError,
        "'tokenizer.ggml.model' is of type u32, expected str",
    ),
    "SentencePiece": (
        entries(model="llama"),
        RequestError,
        r"tokenizer 'llama' \(SentencePiece\) is not supported yet .*; supported: gpt2",
    ),
    "unheard of": (entries(model="x\ny"), RequestError, r"tokenizer 'x\\ny' is not supported yet"),
    "unknown pre": (
        entries(pre="kimi-k2"),
        RequestError,
        r"pre-tokenizer 'kimi-k2' is not known .*; known: a.x-4.0, .*qwen2",
    ),
    "pre is a number": (entries(kv("tokenizer.ggml.pre", "u32", 1), pre=None), MetadataError, "expected str"),
    "no merges": (entries(merges=None), MetadataError, r"key 'tokenizer\.ggml\.merges' is missing"),
    "merges are numbers": (
        entries(kv("tokenizer.ggml.merges", "arr[i32]", [1]), merges=None),
        MetadataError,
        r"'tokenizer\.ggml\.merges' is of type arr\[i32\], expected arr\[str\]",
    ),
    "merge of one": (entries(merges=["t h", "the"]), MetadataError, "merge 1 is 'the', expected two pieces"),
    "merge of none": (entries(merges=[" x"]), MetadataError, "merge 0 is ' x', expected two pieces"),
    "no tokens": (
        [ARCH, kv("tokenizer.ggml.model", "str", "test")],
        MetadataError,
        r"key 'tokenizer\.ggml\.tokens' is missing",
    ),
    "few types": (
        entries(types=[1, 1]),
        MetadataError,
        rf"'tokenizer.ggml.token_type' has 2 elements.*{len(TOKENS)}",
    ),
    "type 9": (entries(types=[1, 9, *TYPES[2:]]), MetadataError, "token 1 is of type 9, expected 0 to 6"),
    "type -1": (entries(types=[1, -1, *TYPES[2:]]), MetadataError, "token 1 is of type -1"),
    "types are floats": (
        entries(kv("tokenizer.ggml.token_type", "arr[f32]", [1.0]), types=None),
        MetadataError,
        r"is of type arr\[f32\], expected arr\[i32\]",
    ),
    "tokens alike": (
        entries(tokens=["a", "b", "a"], types=None),
        MetadataError,
        "tokens 0 and 2 are both 'a'",
    ),
    "eos outside": (
        entries(kv("tokenizer.ggml.eos_token_id", "u32", 5000)),
        MetadataError,
        rf"'tokenizer.ggml.eos_token_id' is 5000, expected an id below {len(TOKENS)}",
    ),
    "eos is text": (
        entries(kv("tokenizer.ggml.eos_token_id", "str", "</s>")),
        MetadataError,
        "is of type str, expected u32",
    ),
    "add_bos is a number": (
        entries(kv("tokenizer.ggml.add_bos_token", "u8", 1)),
        MetadataError,
        "'tokenizer.ggml.add_bos_token' is of type u8, expected bool",
    ),
    "template is a number": (entries(kv("tokenizer.chat_template", "u32", 1)), MetadataError, "expected str"),
    "token no UTF-8": (
        [
            ARCH,
            kv("tokenizer.ggml.model", "str", "test"),
            kv("tokenizer.ggml.tokens", "arr[str]", [b"a", b"\xff"]),
        ],
        GGUFError,
        "key 'tokenizer.ggml.tokens': string 1 is not valid UTF-8",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(load: Callable[[Sequence[bytes]], Tokenizer], tmp_path: Path, fault: str) -> None:
    parts, kind, message = FAULTS[fault]
    with pytest.raises(kind, match=message) as caught:
        load(parts)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"{tmp_path / 'vocab.gguf'}: ")
    assert str(caught.value).isprintable(), "one line"


def test_empty_tokens_are_named(make: Make) -> None:
    tokenizer = make(tokens=[*LETTERS, "", ""], types=None, merges=[])
    assert tokenizer.decode([256, 257]) == "[EMPTY_256][EMPTY_257]"


@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre")
def test_damaged_files_give_clear_errors_only(tmp_path: Path) -> None:
    ids = [kv("tokenizer.ggml.eos_token_id", "u32", 256), kv("tokenizer.ggml.add_bos_token", "bool", 0)]
    data = gguf_bytes(entries(*ids))
    refused, longest = try_variants(data, len(data), 800, 3, tmp_path / "damaged.gguf")
    assert 200 < refused < 800
    assert longest < 2


# --- cost ---------------------------------------------------------------------------------------


def test_a_large_vocabulary_loads_fast(tmp_path: Path) -> None:
    """143,568 tokens: all words of up to three letters."""
    pairs = [a + b for a in ascii_letters for b in ascii_letters]
    triples = [ab + c for ab in pairs for c in ascii_letters]
    tokens = [*LETTERS, *pairs, *triples]
    merges = [f"{word[:-1]} {word[-1]}" for word in [*pairs, *triples]]
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf_bytes(entries(tokens=tokens, types=[1] * len(tokens), merges=merges)))
    seconds = []
    for _ in range(3):  # the first one also imports the library
        start = time.perf_counter()
        tokenizer = load_tokenizer(GGUFFile.open(path))
        seconds.append(time.perf_counter() - start)
    assert tokenizer.n_vocab == len(tokens) == 143_568
    assert [tokenizer.piece(id) for id in tokenizer.encode("abcde")] == [b"ab", b"cde"]
    # 0.5 s on an idle machine.
    assert min(seconds) < 1.5


def test_the_libraries_are_imported_only_when_used() -> None:
    script = "import sys, draftsmith.tokenizer; print(sorted({'tokenizers', 'gguf'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
