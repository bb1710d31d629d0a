"""engine/tokenizer/tokenizer.py and chat_template.py"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import processors

from engine.errors import InvalidPromptError, ModelLoadError
from engine.tokenizer import Tokenizer
from tests.engine.tokenizer.test_gguf import byte_level_file
from tests.engine.tokenizer.vocabularies import byte_fallback, byte_level, byte_level_backend, save_folder, tokenizer_of

TEXTS = [
    "Hello the 中文 😀",
    "tabs\tand\r\n lines  ",
    "    four",
    "",
    "é\u0301\u200d",
    "x = [1, 23]; // 4567",
    "\x00\x7f",
]
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{{ '<|start|>' + m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>' }}{% endif %}"
)
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback()], ids=["byte-level", "byte-fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_text_are_parsed_and_skipped_when_decoding() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("<|start|>a<|end|>", add_special_tokens=False)
    assert len(ids) == 3
    assert set(ids) - tokenizer.special_token_ids == {ord("a")}
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>a<|end|>"


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidPromptError, match="surrogate at character 2"):
        byte_level().encode("ab\ud800")


def test_truncation_and_padding_of_the_file_are_off() -> None:
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert len(tokenizer_of(backend).encode("abcdefgh")) == 8
    assert len(tokenizer_of(backend).encode("abcdef")) == 6


def test_len_is_the_number_of_tokens() -> None:
    tokenizer = byte_level()
    assert len(tokenizer) == tokenizer.vocab_size == byte_level_backend().get_vocab_size()


class TestFolder:
    def test_special_tokens_come_from_the_config(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(
            save_folder(tmp_path, byte_level_backend(), bos_token="<|start|>", eos_token="<|end|>")
        )
        assert tokenizer.decode([tokenizer.bos_token_id or -1], skip_special_tokens=False) == "<|start|>"
        assert {tokenizer.bos_token_id, tokenizer.eos_token_id} == tokenizer.special_token_ids
        assert not tokenizer.has_chat_template

    def test_bos_is_added_where_the_file_says_so(self, tmp_path: Path) -> None:
        backend = byte_level_backend()
        bos = backend.token_to_id("<|start|>")
        backend.post_processor = processors.TemplateProcessing(
            single="<|start|> $A", pair=None, special_tokens=[("<|start|>", bos)]
        )
        tokenizer = Tokenizer.load(save_folder(tmp_path, backend, bos_token="<|start|>"))
        assert tokenizer.encode("a") == [tokenizer.bos_token_id, ord("a")]
        assert tokenizer.encode("a", add_special_tokens=False) == [ord("a")]

    def test_the_template_may_stand_in_each_of_its_places(self, tmp_path: Path) -> None:
        template = "{{ bos_token }}{{ messages[0]['content'] }}"
        named = [{"name": "default", "template": template}, {"name": "rag", "template": "no"}]
        folders = {
            "config": save_folder(tmp_path / "a", byte_level_backend(), bos_token="<|start|>", chat_template=template),
            "named": save_folder(tmp_path / "b", byte_level_backend(), bos_token="<|start|>", chat_template=named),
            "jinja": save_folder(tmp_path / "c", byte_level_backend(), bos_token="<|start|>"),
            "json": save_folder(tmp_path / "d", byte_level_backend(), bos_token="<|start|>"),
        }
        (folders["jinja"] / "chat_template.jinja").write_text(template)
        (folders["json"] / "chat_template.json").write_text(json.dumps({"chat_template": template}))
        for place, folder in folders.items():
            tokenizer = Tokenizer.load(folder)
            assert tokenizer.has_chat_template, place
            assert tokenizer.apply_chat_template([USER]) == "<|start|>hi", place

    def test_a_damaged_tokenizer_is_a_load_error(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(ModelLoadError, match="cannot be read"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize("text", ["[]", "{", '{"chat_template": 5}', '{"chat_template": [{"name": "default"}]}'])
    def test_a_damaged_template_file_is_a_load_error(self, tmp_path: Path, text: str) -> None:
        save_folder(tmp_path, byte_level_backend())
        (tmp_path / "chat_template.json").write_text(text)
        with pytest.raises(ModelLoadError, match="chat_template"):
            Tokenizer.load(tmp_path)

    def test_what_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"neither a tokenizer\.json nor a \.gguf"):
            Tokenizer.load(tmp_path)
        (tmp_path / "tokenizer.model").write_bytes(b"x")
        with pytest.raises(ModelLoadError, match="save_pretrained"):
            Tokenizer.load(tmp_path)
        for name in ("a.gguf", "b.gguf"):
            (tmp_path / name).write_bytes(b"GGUF")
        with pytest.raises(ModelLoadError, match=r"a\.gguf, b\.gguf"):
            Tokenizer.load(tmp_path)
        with pytest.raises(ModelLoadError, match="does not exist"):
            Tokenizer.load(tmp_path / "nowhere")
        with pytest.raises(ModelLoadError, match="neither a folder nor"):
            Tokenizer.load(tmp_path / "tokenizer.model")


class TestChatTemplate:
    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Tokenizer:
        return Tokenizer.load(save_folder(tmp_path, byte_level_backend(), chat_template=ALTERNATING))

    def test_renders_with_and_without_the_generation_prompt(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.apply_chat_template([USER]) == "<|start|>hi<|start|>"
        assert tokenizer.apply_chat_template([USER], add_generation_prompt=False) == "<|start|>hi"

    def test_V9_a_refusal_of_the_template_is_the_callers_with_its_message(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InvalidPromptError, match="roles must alternate user/assistant"):
            tokenizer.apply_chat_template([USER, USER])

    def test_V9_any_failure_of_the_template_is_a_refusal(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InvalidPromptError, match="refused the messages"):
            tokenizer.apply_chat_template([{"role": "user"}])

    def test_V9_without_a_template_there_is_no_fallback(self) -> None:
        with pytest.raises(InvalidPromptError, match="no chat template"):
            byte_level().apply_chat_template([USER])

    def test_V1_no_messages(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InvalidPromptError, match="empty"):
            tokenizer.apply_chat_template([])

    def test_variables_reach_the_template_but_cannot_replace_it(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(save_folder(tmp_path, byte_level_backend(), chat_template="{{ mood }}{{ tools }}"))
        assert tokenizer.apply_chat_template([USER], mood="good") == "goodNone"
        assert "'f'" in tokenizer.apply_chat_template([USER], tools=[{"type": "function", "name": "f"}])
        for name in ("chat_template", "tokenize", "return_dict"):
            with pytest.raises(InvalidPromptError, match=name):
                tokenizer.apply_chat_template([USER], **{name: "{{ 1 }}"})

    def test_the_template_runs_in_a_sandbox(self, tmp_path: Path) -> None:
        template = "{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}"
        tokenizer = Tokenizer.load(save_folder(tmp_path, byte_level_backend(), chat_template=template))
        with pytest.raises(InvalidPromptError, match="unsafe"):
            tokenizer.apply_chat_template([USER])


def test_loading_and_using_a_tokenizer_leaves_torch_out(tmp_path: Path) -> None:
    save_folder(tmp_path / "folder", byte_level_backend(), chat_template=ALTERNATING)
    byte_level_file(tmp_path / "m.gguf", "smollm", chat_template=ALTERNATING)
    code = (
        "import sys; from pathlib import Path\n"
        "from engine.tokenizer import Tokenizer\n"
        "from engine.output.processor import OutputProcessor\n"
        "for name in ('folder', 'm.gguf'):\n"
        "    t = Tokenizer.load(Path(sys.argv[1]) / name); OutputProcessor(t)\n"
        "    t.decode(t.encode(t.apply_chat_template([{'role': 'user', 'content': 'x'}])))\n"
        "print([m for m in ('torch', 'gguf', 'zmq', 'msgspec') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
