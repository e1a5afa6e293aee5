"""`docs/blocks.py`, whose folder is no package."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "docs" / "blocks.py"
_spec = importlib.util.spec_from_file_location("blocks", _PATH)
blocks = importlib.util.module_from_spec(_spec)
sys.modules["blocks"] = blocks
_spec.loader.exec_module(blocks)
