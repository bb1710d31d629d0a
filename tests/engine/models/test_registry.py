"""Loading a model from a path: what is found, what is refused, what is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.errors import ModelLoadError
from engine.layers.linear import default_dtype
from engine.models.registry import load_model, read_config
from tests.engine.models.dense_backend import DenseBackend
from tests.tiny_gguf import make_gguf
from tests.tiny_models import make_checkpoint


def ignore(phase: str, done: int, total: int) -> None:
    del phase, done, total


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load_model(
        make_checkpoint("llama", tmp_path, tokenizer=False), None, DenseBackend(), lambda *event: seen.append(event)
    )
    total = 3 + 3 * 9
    assert seen == [("loading weights", done, total) for done in range(total + 1)]


def test_auto_dtype(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    assert load_model(path, None, DenseBackend(), ignore).dtype == default_dtype()
    assert load_model(path, torch.float16, DenseBackend(), ignore).dtype == torch.float16


def test_reading_a_configuration_needs_no_torch(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path / "hf", tokenizer=False)
    file = make_gguf("qwen2", tmp_path / "model.gguf")
    script = (
        "import sys; from pathlib import Path; from engine.models.registry import read_config\n"
        "from engine.demo import demo_model_path\n"
        "for path in sys.argv[1:]: print(read_config(Path(path)).architecture)\n"
        "assert not {'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules), 'heavy import'"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["LlamaForCausalLM", "Qwen2ForCausalLM"]


def test_safetensors_models_do_not_import_gguf(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path, tokenizer=False)
    script = (
        "import sys; from pathlib import Path; from engine.models.registry import load_model\n"
        "from engine.layers.torch_backend import TorchBackend\n"
        "load_model(Path(sys.argv[1]), None, TorchBackend(), lambda *_: None)\n"
        "assert not {'gguf', 'zmq', 'msgspec', 'transformers', 'triton'} & set(sys.modules), 'heavy import'"
    )
    result = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_unsupported_architecture_lists_the_supported(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False, architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelLoadError) as error:
        load_model(path, None, DenseBackend(), ignore)
    assert str(error.value) == (
        f"{path / 'config.json'}: architecture 'GPT2LMHeadModel' is not supported; supported are "
        "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    )


def test_unsupported_gguf_architecture_lists_the_supported(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError) as error:
        read_config(path)
    assert str(error.value) == (
        f"{path}: GGUF architecture 'mamba' is not supported; supported are llama, qwen2, qwen3"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hidden_act": "xielu"}, "hidden_act 'xielu' is not supported; supported are silu, "),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"head_dim": 7}, "head_dim must be even"),
    ],
)
def test_shapes_that_cannot_run(overrides: dict[str, object], message: str, tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False, **overrides)
    with pytest.raises(ModelLoadError, match=message):
        load_model(path, None, DenseBackend(), ignore)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_missing_and_unexpected_tensors_are_named(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = make_checkpoint(family, tmp_path, tokenizer=False)
    file = path / "model.safetensors"
    weights = load_file(file)
    gone = weights.pop("model.layers.1.self_attn.k_proj.weight")
    save_file(weights, file)
    with pytest.raises(ModelLoadError, match=r"missing tensors: model\.layers\.1\.self_attn\.k_proj\.weight$"):
        load_model(path, None, DenseBackend(), ignore)
    weights["model.layers.1.self_attn.k_proj.weight"] = gone
    weights["model.layers.1.self_attn.sinks"] = torch.zeros(4)
    save_file(weights, file)
    with pytest.raises(ModelLoadError, match=r"does not account for: model\.layers\.1\.self_attn\.sinks$"):
        load_model(path, None, DenseBackend(), ignore)


def test_misshapen_tensor_is_named(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    config = (path / "config.json").read_text().replace('"intermediate_size": 96', '"intermediate_size": 80')
    (path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError, match=r"layers\.0\.mlp\.gate_proj\.weight has shape \[96, 64\].*\[80, 64\]"):
        load_model(path, None, DenseBackend(), ignore)


def test_left_overs_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = make_checkpoint("smollm", tmp_path, tokenizer=False)
    weights = load_file(path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(weights, path / "model.safetensors")
    load_model(path, None, DenseBackend(), ignore)
