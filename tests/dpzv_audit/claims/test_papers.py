"""What the papers claim gets the same verdicts whatever the seed; full size, since the verdicts are of that size."""

import pytest

from dpzv_audit.claims.file import AttackClaim, load_claims
from dpzv_audit.evidence.verdict import decide
from dpzv_audit.statistics.panel import holm

from ...helpers.gates import gate_of, gathered
from ...helpers.places import ROOT

PAPERS = ROOT / "examples" / "papers.toml"
SEEDS = 5
VERDICTS = {
    "DPZV, epsilon 0.1, one client": "refuted",
    "DPZV, epsilon 0.1, colluding clients": "refuted",
    "DPZV, epsilon 0.1, outsider": "overclaimed",
    "DPZV, epsilon 1, one client": "refuted",
    "DPZV, epsilon 1, colluding clients": "refuted",
    "DPZV, epsilon 1, outsider": "overclaimed",
    "DPZV, epsilon 10, one client": "refuted",
    "DPZV, epsilon 10, colluding clients": "refuted",
    "DPZV, epsilon 10, outsider": "overclaimed",
    "DPZV, a whole record, epsilon 1, one client": "refuted",
    "DPZV, the final model, epsilon 1": "overclaimed",
    "DPZV, embeddings of a client, epsilon 1": "refuted",
    "DPZV, the clip as printed, epsilon 1, one client": "overclaimed",
    "dpzv-sound, epsilon 1, colluding clients": "supported",
    "dpzv-sound, epsilon 1, one client": "supported",
    "VAFL with embedding noise, labels, epsilon 1": "overclaimed",
    "VAFL with embedding noise hides labels": "refuted",
    "CZOFO, table 2, q = 10": "overclaimed",
    "CZOFO, theorem 4.1 at table 2's numbers, q = 10": "overclaimed",
    "CZOFO hides labels, q = 100": "refuted",
    "Cascaded defends against one query a batch of 64": "inconclusive",
    "Cascaded defends against twenty queries a batch of 16": "refuted",
    "VAFL hides labels": "refuted",
}


def test_the_expected_verdicts_are_those_of_the_file_and_of_the_page():
    file = load_claims(PAPERS)
    assert list(VERDICTS) == [placed.name for placed in file.claims]
    page = (PAPERS.parents[1] / "docs" / "findings.md").read_text()
    counts = {word: list(VERDICTS.values()).count(word) for word in set(VERDICTS.values())}
    said = f"{counts['refuted']} are refuted, {counts['overclaimed']} overclaimed (no valid proof), "
    said += f"{counts['inconclusive']} is inconclusive, and the {counts['supported']} of the repaired method are"
    assert f"The file below holds {len(VERDICTS)} claims: {said}" in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_verdict_is_the_same_for_every_seed(seed):
    file = load_claims(PAPERS)
    runs = gathered(gate_of(file, seed=seed))
    found = [run.evidence() for run in runs]
    refuted = holm([evidence.p_value for evidence in found], file.alpha)
    verdicts = {
        run.placed.name: decide(
            refuted=no,
            theory=evidence.theory.applies,
            upper=evidence.theory.upper,
            claimed=None if isinstance(run.placed.claim, AttackClaim) else run.placed.claim.epsilon,
        )[0]
        for run, evidence, no in zip(runs, found, refuted, strict=True)
    }
    assert verdicts == VERDICTS
