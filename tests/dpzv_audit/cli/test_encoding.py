import io
import sys

import numpy as np
import pytest

from dpzv_audit.cli.failures import PLAIN, spell_plainly


def written(text, encoding, errors="strict"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors)
    spell_plainly(stream)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_an_encoding_lacks_are_spelt_out(encoding):
    assert written("ε ≤ 1, never ≥ ∞", encoding) == "epsilon <= 1, never >= infinity"
    for character in PLAIN:
        assert len(written(character, encoding)) >= 1


def test_what_has_no_spelling_is_an_escape_and_utf_8_is_left_alone():
    assert written("système 日", "latin-1") == "système \\u65e5"
    assert written("ε ≤ 日", "utf-8") == "ε ≤ 日"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_of_file_names_stay_what_they_are(encoding, errors):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors)
    spell_plainly(stream)
    stream.write(b"r\xe9sum\xe9".decode("utf-8", "surrogateescape"))
    stream.flush()
    assert stream.buffer.getvalue() == b"r\xe9sum\xe9"


def test_a_rule_that_the_user_set_is_kept():
    assert written("ε ≤ 1", "ascii", errors="replace") == "? ? 1"


@pytest.mark.parametrize(
    ("encoding", "errors"),
    [("ascii", "strict"), ("ascii", "surrogateescape"), ("latin-1", "strict"), ("cp1252", "strict")],
)
def test_verdicts_are_printed_whatever_the_encoding(encoding, errors, tmp_path, monkeypatch, cli):
    for name, mean in (("in", 0.5), ("out", 0.0)):
        np.savetxt(tmp_path / f"{name}.csv", np.random.default_rng(0).normal(mean, 1.0, 200))
    claims = tmp_path / "claims.toml"
    claims.write_text('[[claim]]\nname = "ours"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 5.0\n')
    printed = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors)
    monkeypatch.setattr(sys, "stdout", printed)
    assert cli(f"verify {claims} --no-cache --out {tmp_path}/runs").code == 1, "not tested"
    printed.flush()
    assert "<= 5" in printed.buffer.getvalue().decode(encoding)
