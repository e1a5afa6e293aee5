"""`audit mechanism --exactly-gaussian`: the word of a user, what may refute on it, and what it is called."""

import html

import numpy as np
import pytest

NOISE = """
class Shifted:
    def run_batch(self, world, rng, n):
        return rng.{law}(float(world), 1.0, n)


def build():
    return Shifted()
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("law", "flags", "verdict", "given"),
    [
        ("normal", "--exactly-gaussian", "refuted", "given Gaussian noise"),
        ("normal", "", "inconclusive", ""),
        ("laplace", "--exactly-gaussian", "inconclusive", ""),
    ],
)
def test_a_claim_falls_by_gaussian_noise_only_on_a_word_that_no_test_contradicts(
    law, flags, verdict, given, tmp_path, monkeypatch, cli
):
    # epsilon 2.5 is between what `joint` can show of mu = 1 at 1,000 runs and the truth, 4.38.
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"vouched_{law}.py").write_text(NOISE.format(law=law))
    result = cli.answer(f"audit mechanism vouched_{law}:build --epsilon 2.5 --runs 1000 {flags}")
    assert (result["privacy"]["verdict"], result["privacy"]["judged"]["given"]) == (verdict, given)
    assert result["exactly_gaussian"] == bool(flags)
    report = next(tmp_path.glob("dpzv-runs/*/report.html")).read_text(encoding="utf-8")
    assert ("refuted given Gaussian noise" in report) == bool(given)
    assert np.isfinite(result["privacy"]["empirical_lower"])
    warned = [text for text in result["privacy"]["judged"]["warnings"] if "a stronger bound" in text]
    assert len(warned) == (law == "laplace"), "said where the scores contradict the assumption, and only there"
    assert all(text in " ".join(html.unescape(report).split()) for text in warned)


def test_a_planted_mechanism_knows_what_its_scores_are(cli):
    line = cli.refusal("audit mechanism planted:sound --exactly-gaussian")
    assert "--exactly-gaussian does not go with planted" in line
