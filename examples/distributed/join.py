"""Merges what both parties saved into one transcript: python join.py FOLDER."""

import json
import sys
from pathlib import Path

from dpzv_audit.systems import Recorder

folder = Path(sys.argv[1])
parts = [folder / "party-0", folder / "party-1"]
about = json.loads((parts[0] / "manifest.json").read_text())
record = Recorder(about["records"], about["clients"])
record.merge(*parts)
print(record.save(folder / "whole", classes=about["classes"]))
