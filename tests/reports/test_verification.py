"""The report on a claims file: whose picture it shows."""

import json

import numpy as np
import pytest

from dpzv_audit.cli import main
from dpzv_audit.results import read
from reports.content import report_content


class Kept(dict):
    """Keeps drawings in memory."""

    def __call__(self, key, draw):
        if key not in self:
            self[key] = draw()
        return self[key]


@pytest.fixture
def result(tmp_path, monkeypatch, capsys):
    """A result of `verify` on one claim about scores, which they refute."""
    monkeypatch.chdir(tmp_path)
    for name in ("in", "out"):
        np.savetxt(tmp_path / f"{name}.csv", np.arange(400.0) + (1000.0 if name == "in" else 0.0))
    (tmp_path / "claims.toml").write_text(
        '[[claim]]\nname = "c"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 1.0\n'
    )
    assert main(["verify", "claims.toml", "--json", "--no-cache"]) == 1
    return json.loads(capsys.readouterr().out)


def pictures(result, drawings=None):
    report = report_content(read(result)[0], drawings=drawings)
    return [picture.svg for picture in report.pictures]


def test_a_kept_drawing_is_shown_for_what_it_was_drawn_of_alone(result):
    kept = Kept()
    first = pictures(result, kept)
    assert first == pictures(result, kept)
    assert len(first) == len(kept) == 1
    entry = result["claims"][0]
    entry["tradeoff"]["empirical"] = [(1 + beta) / 2 for beta in entry["tradeoff"]["empirical"]]
    assert pictures(result, kept) == pictures(result) != first
    entry["tradeoff"] = None
    assert pictures(result, kept) == pictures(result) != first
    assert len(kept) == 3
