"""Published numbers of defences, as a page prints them, where the data are (`DPZV_AUDIT_DATA`)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"```python\n((?:(?!```).)*?mnist.*?)```\n\n```text\n(.*?)```", re.DOTALL)


@pytest.mark.skipif("DPZV_AUDIT_DATA" not in os.environ, reason="needs DPZV_AUDIT_DATA")
@pytest.mark.slow
@pytest.mark.parametrize("defence", ["confusional-autoencoder", "dcor"])
def test_the_page_prints_what_its_code_does_on_mnist(defence, tmp_path):
    page = (ROOT / "docs/results/defence-published.md").read_text()
    (section,) = re.findall(rf"^## {defence}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    ((code, printed),) = BLOCK.findall(section)
    (tmp_path / "data").symlink_to(os.environ["DPZV_AUDIT_DATA"])
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    numbers = [[float(number) for number in re.findall(r"\d+\.\d+", text)] for text in (run.stdout, printed)]
    assert len(numbers[0]) > 3
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-3)
