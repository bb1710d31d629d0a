"""One thread and quiet transformers for the parity tests."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import use_interpreter

use_interpreter()


@pytest.fixture(autouse=True, scope="session")
def _quiet_and_single_threaded() -> None:
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
