"""What a person at the terminal sees: progress while the model loads, and then how to try it."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from dataclasses import dataclass
from typing import TextIO

from tqdm import tqdm

from engine.messages import LoadProgress, ModelInfo

logger = logging.getLogger("predictor")


class LoadingDisplay:
    """A progress bar on a terminal; elsewhere one log line a phase."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._phase: str | None = None
        self._bar: tqdm | None = None

    def show(self, progress: LoadProgress | None) -> None:
        """Draws the state; cheap when nothing changed."""
        if progress is None:
            return
        if progress.phase != self._phase:
            self.close()
            self._phase = progress.phase
            if self._stream.isatty():
                self._bar = tqdm(desc=progress.phase, total=progress.total, file=self._stream, leave=True)
            else:
                logger.info("Starting: %s", progress.phase)
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@dataclass(frozen=True, slots=True)
class Access:
    """What a client needs to be let in."""

    tls: bool = False
    client_certificates: bool = False
    api_keys: bool = False

    @property
    def curl_options(self) -> str:
        """For a shell; the names in capitals are the caller's to fill in, $API_KEY is a variable."""
        options = ["--cacert CA.pem"] if self.tls else []
        options += ["--cert CLIENT.pem --key CLIENT.key"] if self.client_certificates else []
        options += ['-H "Authorization: Bearer $API_KEY"'] if self.api_keys else []
        return "".join(f"{option} " for option in options)


def show(text: str) -> None:
    """Prints it at once."""
    print(text, flush=True)


OPEN = Access()
"""Anybody is let in."""


def ready_text(
    model_name: str,
    info: ModelInfo,
    http_port: int,
    grpc_port: int,
    access: Access = OPEN,
) -> str:
    """What a start says when it is done: what is served where, and a command to try it."""
    scheme, security = ("https", " (both TLS)") if access.tls else ("http", "")
    body = json.dumps({"model": model_name, "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0})
    return (
        f"Serving {model_name} ({info.architecture}, {info.num_parameters / 1e6:.0f} M parameters, {info.dtype} on "
        f"{info.device}, context {info.max_model_len} tokens, {info.num_blocks} KV blocks of {info.block_size}) "
        f"on REST port {http_port} and gRPC port {grpc_port}{security}. Try it:\n"
        f"curl {access.curl_options}{scheme}://localhost:{http_port}/v1/completions "
        f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )
