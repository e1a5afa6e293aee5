"""Heads and figures of results that are tables: planted mechanisms with their verdicts, bounds by accountant."""

import shlex
from collections.abc import Iterable, Sequence

from dpzv_audit.base.grouping import grouped
from dpzv_audit.results import AccountResult, PlantedResult, PlantedRow

from .answer import ATTACKERS, answer_of
from .curves import curves_figure, rounds_figure
from .document import Answer, Judgement, NextStep
from .figures import short
from .head import FALSE_OR_UNPROVEN, RELATIONS, claim_in_words, head_of, judged, no_bound
from .svg import ACCENT, INK, MUTED, Chart
from .text import as_claimed, clean, lower_bound, percent, the, upper_bound, within
from .verdicts import notes_on, words_of

_LEAST_RATIO = 0.1
"""A bound below this share of its claim is drawn there: an axis of powers has no zero."""
_MOST_NAMES = 5


def _listed(names: Iterable[str]) -> str:
    """Return the names in words, "a, b and c", of many the first."""
    shown = [*map(clean, names)]
    if len(shown) > _MOST_NAMES:
        shown = [*shown[:_MOST_NAMES], f"{len(shown) - _MOST_NAMES} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


@head_of.register
def _(result: PlantedResult) -> Judgement:
    wrong = [row for row in result.rows if not row.as_expected]
    right = len(result.rows) - len(wrong)
    about = f"{right} of {len(result.rows)} planted mechanisms got the verdict they must get"
    if len(result.rows) == 1:
        (row,) = result.rows
        about = f"planted:{clean(row.name)} is {clean(row.verdict)}" + (
            f", and {_expected(row)} is right" if wrong else ""
        )
    verdicts = grouped((clean(row.verdict), row.name) for row in result.rows if row.as_expected)
    why = ", ".join(f"{len(names)} {verdict}" for verdict, names in verdicts.items())
    notes = ["Not tested: your mechanisms and trainings. This run checks the audit itself."]
    if not wrong:
        step = NextStep("Audit your mechanism the same way", command="dpzv-audit audit mechanism pkg.mod:factory")
        why = f"The right verdict is known of each: {why}." if why else "No mechanism was audited."
        if len(result.rows) == 1:
            lower, claimed = lower_bound(result.rows[0].empirical_lower), as_claimed(result.rows[0].claimed)
            why = f"The audit shows ε of at least {lower} where {claimed} is claimed."
        return Judgement("as expected", about=about, why=why, notes=notes, step=step)
    why = "; ".join(
        f"{clean(row.name)} got {clean(row.verdict)}, and {_expected(row)} is right" for row in wrong[:_MOST_NAMES]
    )
    step = NextStep("Do not rely on audits here before this is explained. Leave --runs out, or give more of them.")
    return Judgement("not as expected", about=about, why=f"{why}.", alarming=True, notes=notes, step=step)


def _expected(row: PlantedRow) -> str:
    return " or ".join(map(clean, row.expected))


@answer_of.register
def _(result: PlantedResult) -> Answer:
    judgement = head_of(result)
    if len(result.rows) == 1:
        (row,) = result.rows
        attacker = ATTACKERS.get(row.adversary, clean(row.adversary))
        return Answer(
            judgement=judgement,
            subject=f"{clean(row.name)}: {clean(row.bug)}. Attacker: {attacker}.",
            facts={
                "claimed": f"ε ≤ {as_claimed(row.claimed)} (δ = {as_claimed(row.delta)})",
                "measured": _measured(row, result.confidence),
                "proven": f"ε ≤ {upper_bound(row.upper, row.claimed)}, of what its maker states"
                if row.upper is not None
                else f"theory gives no sound bound (gap {clean(row.gap)})",
            },
        )
    rows = sorted(result.rows, key=lambda row: row.as_expected)
    shown = grouped((_got(row), f"{clean(row.name)} {lower_bound(row.empirical_lower, row.claimed)}") for row in rows)
    return Answer(
        judgement=judgement,
        caption="Verdict",
        rows=[{"verdict": verdict, "mechanisms": ", ".join(names)} for verdict, names in shown.items()],
        more="Each number is the ε that the audit shows at least",
    )


def _got(row: PlantedRow) -> str:
    """Return the verdict on a mechanism, and the right one where it is another."""
    verdict = clean(row.verdict)
    return verdict if row.as_expected else f"{verdict} (right: {_expected(row)})"


def _measured(row: PlantedRow, confidence: float | None) -> str:
    if row.empirical_lower is None:
        return "nothing"
    shown = lower_bound(row.empirical_lower, row.claimed)
    return f"ε ≥ {shown}{'' if confidence is None else f', {percent(confidence)} confidence'}"


def planted_figure(rows: Sequence[PlantedRow]) -> str:
    """Return what the audit shows of each mechanism and what theory proves as SVG; "" without rows.

    Both stand over the claim: right of the dashed line the audit contradicts it. The axis is logarithmic.
    """
    known = [row for row in rows if within(row.claimed, 1e-100, 1e100) is not None]
    if not known:
        return ""
    chart = Chart("ε over the claimed ε; dashed: the claim", "", "log", bottom=len(known) - 0.4, top=-0.6)
    chart.settings |= {"yticks": range(len(known)), "yticklabels": [short(row.name, 26) for row in known]}
    chart.level(None, 1.0, upright=True, color=MUTED, ls="--", lw=1.0)
    values = {
        "shown by the audit, at least": [row.empirical_lower for row in known],
        "theory, of what its maker states, at most": [row.upper for row in known],
    }
    looks = ({"color": ACCENT, "marker": "o"}, {"color": INK, "marker": "D", "mfc": "none"})
    for (name, bounds), look in zip(values.items(), looks, strict=True):
        ratios = [(place, _ratio(bound, row)) for place, (bound, row) in enumerate(zip(bounds, known, strict=True))]
        points = [(place, ratio) for place, ratio in ratios if ratio is not None]
        if points:
            chart.line(name, points, upright=True, ls="", ms=5.0, **look)
    texts = (
        f"{clean(row.name)} claims {as_claimed(row.claimed)}, shown {lower_bound(row.empirical_lower, row.claimed)}, "
        f"theory {upper_bound(row.upper, row.claimed)}"
        for row in known
    )
    alt = f"Epsilon of planted mechanisms: {'; '.join(texts)}"
    return chart.draw("planted", alt, 1.0 + 0.27 * len(known), handlelength=1.0)


def _ratio(bound: float | None, row: PlantedRow) -> float | None:
    known = within(bound, 0.0, 1e100)
    return None if known is None else max(known / row.claimed, _LEAST_RATIO)


@head_of.register
def _(result: AccountResult) -> Judgement:
    privacy = result.privacy
    verdict = judged(privacy)
    notes = [*notes_on(verdict, []), *_unproven(result)]
    if verdict is not None:
        alarming = verdict.word in FALSE_OR_UNPROVEN
        step = _noise_for(result) if alarming else _audit_of(result)
        return Judgement(
            words_of(verdict), claim_in_words(privacy), clean(verdict.why), alarming=alarming, notes=notes, step=step
        )
    notes.insert(0, "Not tested: nothing was run. The bounds are on what is stated here.")
    relation = RELATIONS.get(privacy.neighbours or "", "")
    against = ", ".join(filter(None, [f"against {the(privacy.adversary or 'adversary')}", relation]))
    if privacy.upper is None:
        why = no_bound(privacy)
        return Judgement("no sound bound", f"ε {against}", f"{why[:1].upper()}{why[1:]}.", notes=notes)
    delta = "" if privacy.delta is None else f" at δ = {as_claimed(privacy.delta)}"
    about = f"ε ≤ {upper_bound(privacy.upper, privacy.claimed)}{delta} {against}"
    return Judgement("bounded", about, "No ε is claimed; theory proves this one.", notes=notes, step=_audit_of(result))


def _unproven(result: AccountResult) -> list[str]:
    """Return against whom nothing is proven under the page's relation, as a note, with the gaps."""
    own = [bound for bound in result.bounds if bound.neighbours == result.privacy.neighbours]
    proven = {bound.adversary for bound in own if bound.sound and bound.epsilon is not None}
    gaps = grouped((bound.adversary, bound.gaps) for bound in own if bound.adversary not in proven)
    others = [name for name in gaps if name != result.privacy.adversary]
    if not others:
        return []
    names = dict.fromkeys(gap for name in others for each in gaps[name] for gap in each if gap != "no-accountant")
    return [f"Not proven: any ε against {_listed(others)} (gaps: {_listed(names) or 'no-accountant'})."]


_ASKED = {"--sigma", "--noise-multiplier", "--epsilon", "--delta", "--adversary", "--neighbours", "--also", "--out"}
"""Flags of `account` that `calibrate` does without, or gets with other values."""
_SWITCHES = {"--all", "--fast", "--explain"}


def _noise_for(result: AccountResult) -> NextStep:
    """Return how to make a claim true: the noise that it needs, or a number that is proven."""
    privacy = result.privacy
    if privacy.upper is None:
        closed = result.method and "server-state" in (privacy.gap or "")
        return NextStep(
            "Do not state this epsilon before its gaps are closed"
            + (". dpzv-sound closes this one" if closed else "."),
            command="dpzv-audit account --method dpzv-sound" if closed else "",
        )
    words = iter((result.command_line or [])[2:])
    kept = []
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag in _ASKED:
            if not equals:
                next(words, None)
        elif word not in _SWITCHES:
            kept.append(word)
    values = {"epsilon": privacy.claimed, "delta": privacy.delta}
    claim = [f"--{name}={as_claimed(value)}" for name, value in values.items() if value is not None]
    claim += [f"--adversary={privacy.adversary}", f"--neighbours={privacy.neighbours}"]
    command = shlex.join(["dpzv-audit", "calibrate", *map(clean, kept), *map(clean, claim)])
    instead = f"State ε ≤ {upper_bound(privacy.upper, privacy.claimed)} instead"
    return NextStep(f"{instead}, or find the noise that the claim needs", command=command)


def _audit_of(result: AccountResult) -> NextStep:
    """Return how to test what theory proves: what runs may release more than is stated."""
    words = [*map(clean, result.command_line or []), ""]
    subject = ["system", "our_vfl:train"]
    if "--defence" in words:
        subject = ["defence", words[words.index("--defence") + 1]]
    elif result.method:
        subject = ["method", clean(result.method)]
    command = shlex.join(["dpzv-audit", "audit", *subject])
    return NextStep("Audit what runs, which may release more than is stated", command=command)


def account_figures(result: AccountResult) -> dict[str, str]:
    """Return the drawings of `account` by name: epsilon by rounds, and trade-off curves; those that show anything."""
    privacy, figures = result.privacy, result.figures
    first = next(iter(result.bounds), None)
    relation, delta = ("", None) if first is None else (first.neighbours, first.delta)
    subject = ", ".join(
        [clean(result.method) or "one channel", relation, *([] if delta is None else [f"delta {delta:g}"])]
    )
    alpha = figures.tradeoff.get("alpha", [])
    curves = {
        short(name, 90): curve
        for name, curve in figures.tradeoff.items()
        if name != "alpha" and len(curve) == len(alpha)
    }
    rounds = {short(name, 90): points for name, points in figures.rounds.items()}
    strong = privacy.adversary or "client"
    drawings = {
        "epsilon-rounds": rounds_figure(rounds, subject=subject, strong=_naming(strong, rounds)),
        "trade-off": curves_figure(alpha, curves, subject=subject, strong=_naming(strong, curves)),
    }
    return {name: drawing for name, drawing in drawings.items() if drawing}


def _naming(adversary: str, lines: Iterable[str]) -> str:
    """Return the line that an adversary stands on; several share one."""
    return next((name for name in lines if adversary in name.split(", ")), "")
