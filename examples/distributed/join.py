"""Merges what both parties saved into one transcript: python join.py FOLDER."""

import sys
from pathlib import Path

from dpzv_audit.systems import Recorder
from dpzv_audit.systems.transcript import load, merge, save

folder = Path(sys.argv[1])
parts = [folder / "party-0", folder / "party-1"]
first = load(parts[0])
whole = Recorder(first.records, first.clients)
merge(whole, *parts)
print(save(whole, folder / "whole", classes=first.manifest.classes))
