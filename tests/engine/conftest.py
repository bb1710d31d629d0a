from __future__ import annotations

from tests.interpreter import use_interpreter

use_interpreter()
