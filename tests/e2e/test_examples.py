"""The example of a mechanism from outside this project, through the installed command."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        # True claim: refuted with probability at most 1e-4 at this confidence (fixed seed).
        pytest.param("laplace_mean", "inconclusive", marks=pytest.mark.ci),
        # Its epsilon is 4. Missed with probability at most 6.1e-5: of 50,000 pilots of 100 + 100 such scores, none cut
        # within 0.25 of the places, in units of the scale, beyond which the test of the other 1,900 + 1,900 misses with
        # more than 2e-8 (binomial tails of both counts); 0 of 50,000 is at most 6e-5 at 95%.
        pytest.param("mean_of_the_wrong_size", "refuted", marks=pytest.mark.slow),
        # A miss takes 340 errors of 1,500 on each side at the chosen cut, more in all where they are uneven. The worlds
        # lie 12.7 standard deviations apart: of 223 fits on 400 + 400 views, each with the cut that its pilot of
        # 100 + 100 chose, the worst errs on 4 of 10,000 further views. Were it 15% on both sides, 375 times as much, a
        # miss would still have probability below 1e-9 (binomial tails).
        pytest.param("noisy_regression", "refuted", marks=pytest.mark.slow),
    ],
)
def test_a_mechanism_from_outside_gets_its_verdict(tool, tmp_path, name, verdict):
    given = ("--epsilon", "1", "--runs", "2000", "--confidence", "0.9999", "--out", tmp_path)
    result = tool.json("audit", "mechanism", f"dp_mean:{name}", *given, cwd=EXAMPLES)
    assert result["privacy"]["verdict"] == verdict
    assert (Path(result["run"]) / "report.html").is_file()
