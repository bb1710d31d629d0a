"""The command line and the environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from predictor.args import parse_config
from predictor.config import ServerConfig
from predictor.flags import FLAGS, parse_size

MODEL = ["--model_dir", "/models/tiny"]


def test_defaults_are_those_of_the_configs() -> None:
    config = parse_config(MODEL, {})
    assert config == ServerConfig(engine=EngineConfig(model_dir=Path("/models/tiny")), model_name="tiny")


def test_every_field_has_a_flag_and_every_flag_a_field() -> None:
    known = {f.name for f in (*fields(EngineConfig), *fields(ServerConfig))} - {"engine"}
    assert {flag.name for flag in FLAGS} == known


def test_every_flag_is_taken() -> None:
    config = parse_config(
        [
            *MODEL,
            *["--model_name", "m", "--served_model_aliases", "org/a", "b", "--dtype", "float32", "--device", "cpu"],
            *["--num_threads", "2", "--http_port", "1", "--grpc_port", "2", "--grpc_max_message_length", "16MiB"],
            *["--drain_timeout", "1.5", "--stall_timeout", "9", "--max_waiting_requests", "3"],
            *["--max_waiting_tokens", "4", "--max_model_len", "64", "--max_num_seqs", "5"],
            *["--max_num_batched_tokens", "6", "--aging_seconds", "7", "--block_size", "8", "--num_kv_blocks", "9"],
            *["--enable_prefix_caching", "false"],
            *["--ssl_certfile", "c.pem", "--ssl_keyfile", "k.pem", "--ssl_client_ca", "ca.pem"],
            *["--api_key", "a", "--api_key", "b,c", "d", "--api_key_file", "keys"],
        ],
        {},
    )
    assert config == ServerConfig(
        engine=EngineConfig(
            model_dir=Path("/models/tiny"),
            dtype="float32",
            device="cpu",
            num_threads=2,
            max_model_len=64,
            max_num_seqs=5,
            max_num_batched_tokens=6,
            aging_seconds=7.0,
            block_size=8,
            num_kv_blocks=9,
            enable_prefix_caching=False,
        ),
        model_name="m",
        served_model_aliases=("org/a", "b"),
        http_port=1,
        grpc_port=2,
        grpc_max_message_length=16 * 2**20,
        drain_timeout=1.5,
        stall_timeout=9.0,
        max_waiting_requests=3,
        max_waiting_tokens=4,
        ssl_certfile=Path("c.pem"),
        ssl_keyfile=Path("k.pem"),
        ssl_client_ca=Path("ca.pem"),
        api_key=("a", "b", "c", "d"),
        api_key_file=Path("keys"),
    )


@pytest.mark.parametrize(
    "words", [["--max-model-len", "64"], ["--max_model_len", "64"], ["--max-model-len=64"], ["--max_model-len=64"]]
)
def test_hyphens_and_underscores(words: list[str]) -> None:
    assert parse_config([*MODEL, *words], {}).engine.max_model_len == 64


def test_values_keep_their_hyphens() -> None:
    assert parse_config([*MODEL, "--model-name=my-model"], {}).model_name == "my-model"


@pytest.mark.parametrize("words", [["--max_modl_len", "64"], ["--max_model", "64"], ["stray"], ["-x"]])
def test_unknown_words_are_refused_also_abbreviations(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="unrecognized"):
        parse_config([*MODEL, *words], {})


def test_environment_and_the_command_line_wins() -> None:
    environ = {"PAGEDSERVE_HTTP_PORT": "9000", "PAGEDSERVE_BLOCK_SIZE": "32", "HOME": "/root"}
    config = parse_config([*MODEL, "--block_size", "8"], environ)
    assert (config.http_port, config.engine.block_size) == (9000, 8)


def test_lists_in_the_environment() -> None:
    config = parse_config(MODEL, {"PAGEDSERVE_SERVED_MODEL_ALIASES": "a,org/b c, a"})
    assert config.served_model_aliases == ("a", "org/b", "c")


def test_an_unknown_environment_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown environment variable PAGEDSERVE_HTTPPORT; known are"):
        parse_config(MODEL, {"PAGEDSERVE_HTTPPORT": "9000"})


def test_a_malformed_environment_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="PAGEDSERVE_HTTP_PORT must be a whole number, got 'x'"):
        parse_config(MODEL, {"PAGEDSERVE_HTTP_PORT": "x"})


def test_the_variables_of_a_kubernetes_service_named_like_us_are_no_flags() -> None:
    environ = {
        "PAGEDSERVE_SERVICE_HOST": "10.0.0.1",
        "PAGEDSERVE_SERVICE_PORT": "80",
        "PAGEDSERVE_SERVICE_PORT_GRPC": "81",
        "PAGEDSERVE_PORT": "tcp://10.0.0.1:80",
        "PAGEDSERVE_PORT_80_TCP": "tcp://10.0.0.1:80",
        "PAGEDSERVE_PORT_80_TCP_PROTO": "tcp",
        "PAGEDSERVE_PORT_80_TCP_ADDR": "10.0.0.1",
        "PAGEDSERVE_HTTP_PORT": "tcp://10.0.0.2:80",  # of a Service named pagedserve-http
    }
    assert parse_config(MODEL, environ).http_port == 8080


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 * 2**30), ("512MiB", 2**29), ("512Mi", 2**29), ("2GB", 2 * 10**9), ("1.5KiB", 1536), ("77", 77)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_config([*MODEL, "--kv_cache_memory", text], {}).engine.kv_cache_memory == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 blocks", "4XiB"])
def test_malformed_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_memory.*4GiB"):
        parse_config([*MODEL, f"--kv_cache_memory={text}"], {})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("0", False), ("yes", True)])
def test_booleans(text: str, value: bool) -> None:
    assert parse_config([*MODEL, "--enable_prefix_caching", text], {}).engine.enable_prefix_caching is value


def test_a_boolean_that_is_none() -> None:
    with pytest.raises(ConfigError, match="true or false, got 'maybe'"):
        parse_config([*MODEL, "--enable_prefix_caching", "maybe"], {})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/tiny", "tiny"),
        ("/models/SmolLM2-Q4.gguf", "SmolLM2-Q4"),
        ("/models/M.GGUF", "M"),
        ("/mnt/models", "model"),
        ("/", "model"),
    ],
)
def test_the_name_follows_the_folder(path: str, name: str) -> None:
    assert parse_config(["--model_dir", path], {}).model_name == name


def test_O11_a_model_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"slash.*served_model_aliases"):
        parse_config([*MODEL, "--model_name", "org/model"], {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--http_port", "70000"], "http_port must be a whole number between 0 and 65535"),
        (["--http_port", "8081"], "must differ"),
        (["--max_waiting_requests", "0"], "max_waiting_requests must be a whole number at least 1"),
        (["--drain_timeout", "-1"], "drain_timeout"),
        (["--log_format", "xml"], "log_format.*text, json"),
        (["--request_log_rate", "-1"], "request_log_rate must be a whole number at least 0"),
        (["--otlp_traces_endpoint", "collector:4317"], "otlp_traces_endpoint must be a URL such as http"),
        (["--otlp_traces_endpoint", "http://collector:grpc"], "otlp_traces_endpoint must be a URL such as http"),
        (["--stall_timeout", "nan"], "stall_timeout"),
        (["--block_size", "0"], "block_size"),
        (["--dtype", "int3"], "dtype.*one of auto"),
        (["--model_name", ""], "model_name"),
        (["--num_kv_blocks", "5", "--kv_cache_memory", "1GiB"], "not both"),
    ],
)
def test_refusals_name_the_flag(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config([*MODEL, *words], {})


def test_the_config_is_frozen() -> None:
    config = parse_config(MODEL, {})
    with pytest.raises(FrozenInstanceError):
        config.http_port = 1  # type: ignore[misc]


def test_help_groups_the_flags_and_states_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_config(["--help"], {})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for group in ("model:", "server:", "admission:", "batch:", "KV cache:"):
        assert f"\n{group}\n" in text
    assert "(default: 8080)" in text
    assert "(default: true)" in text
    assert "PAGEDSERVE_HTTP_PORT" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--version"], {})
    assert capsys.readouterr().out.startswith("pagedserve ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ssl_certfile", "c"], "ssl_certfile needs ssl_keyfile"),
        (["--ssl_keyfile", "k"], "ssl_keyfile needs ssl_certfile"),
        (["--ssl_client_ca", "a"], "ssl_client_ca needs ssl_certfile and ssl_keyfile"),
    ],
)
def test_half_of_tls_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_config([*MODEL, *words], {})


def test_keys_in_the_environment_and_the_command_line_wins() -> None:
    environ = {"PAGEDSERVE_API_KEY": "a, b\n"}
    assert parse_config(MODEL, environ).api_key == ("a", "b")
    assert parse_config([*MODEL, "--api-key=c"], environ).api_key == ("c",)


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["--api_key="], {}),
        (["--api_key", ""], {}),
        (["--api_key", "sk-1,,sk-2"], {}),
        ([], {"PAGEDSERVE_API_KEY": ""}),
        ([], {"PAGEDSERVE_API_KEY": "sk-1,"}),
        (["--api_key"], {}),
        (["--api_key", "sk-1 sk-2"], {}),
        (["--api_keys", "sk-1"], {}),
        (["--api_key=sk-1", "sk-2"], {}),
        (["--api_key", "sk-1", "--api_key_fil=sk-2"], {}),
        ([], {"PAGEDSERVE_API_KEYS": "sk-1"}),
        (["--api_key", "sk-1", "--http_port", "x"], {}),
    ],
)
def test_a_refusal_shows_no_key(words: list[str], environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config([*MODEL, *words], environ)
    assert "sk-" not in str(caught.value)


def test_a_config_that_is_printed_and_help_show_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "sk-1" not in repr(parse_config([*MODEL, "--api_key", "sk-1"], {}))
    monkeypatch.setenv("PAGEDSERVE_API_KEY", "sk-1")
    with pytest.raises(SystemExit):
        parse_config(["--api_key", "sk-1", "--help"], {"PAGEDSERVE_API_KEY": "sk-1"})
    assert "sk-1" not in capsys.readouterr().out


def test_the_gpus_flags() -> None:
    words = ["--device", "cuda", "--attention_backend", "triton", "--cuda_graphs=false", "--load_format", "dummy"]
    engine = parse_config([*MODEL, *words, "--memory_utilization", "0.8"], {}).engine
    assert (engine.device, engine.attention_backend, engine.load_format) == ("cuda", "triton", "dummy")
    assert (engine.cuda_graphs, engine.memory_utilization) == (False, 0.8)
    assert engine.step_tokens == 8192


def test_the_memory_share_has_the_name_that_other_servers_give_it() -> None:
    assert parse_config([*MODEL, "--gpu-memory-utilization=0.7"], {}).engine.memory_utilization == 0.7
    environ = {"PAGEDSERVE_GPU_MEMORY_UTILIZATION": "0.6"}
    assert parse_config(MODEL, environ).engine.memory_utilization == 0.6
    with pytest.raises(ConfigError, match=r"MEMORY_UTILIZATION must be a number such as 0\.9"):
        parse_config(MODEL, {"PAGEDSERVE_MEMORY_UTILIZATION": "most"})
    words = [*MODEL, "--gpu_memory_utilization", "0.5"]
    environ = {"PAGEDSERVE_MEMORY_UTILIZATION": "0.6"}
    assert parse_config(words, environ).engine.memory_utilization == 0.5, "the command line wins, by either name"


def test_both_names_of_the_memory_share_in_one_place_are_refused() -> None:
    environ = {"PAGEDSERVE_GPU_MEMORY_UTILIZATION": "0.6", "PAGEDSERVE_MEMORY_UTILIZATION": "0.6"}
    refused = "PAGEDSERVE_GPU_MEMORY_UTILIZATION is another name of PAGEDSERVE_MEMORY_UTILIZATION: give one of them"
    with pytest.raises(ConfigError, match=refused):
        parse_config(MODEL, environ)
    for words in (
        ["--gpu-memory-utilization=0.7", "--memory_utilization", "0.7"],
        ["--memory-utilization=0.7", "--gpu_memory_utilization=0.8"],
    ):
        with pytest.raises(ConfigError, match="--gpu_memory_utilization is another name of --memory_utilization"):
            parse_config([*MODEL, *words], {})
