"""The privacy section of a baseline's result: what the noise on its embeddings or gradients is worth."""

from __future__ import annotations

from dpzv_audit.accounting import GAPS, gaps_of, tightest_sound, upper_bounds
from dpzv_audit.evidence import AdversaryName
from dpzv_audit.results import Privacy
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.context import Deployment


def channel_section(
    method: MethodSpec, config: TrainingConfig, deployment: Deployment, *, adversary: AdversaryName
) -> Privacy:
    """The claim and the upper bounds against `adversary`, whom the noise faces; nothing here is audited."""
    given, (release,) = method.protection(config), method.releases(config, deployment)
    delta, neighbours = given.delta, given.neighbours
    gaps = gaps_of(release, adversary, neighbours)
    bounds = upper_bounds(release, delta=delta, adversaries=[adversary], neighbours=[neighbours])
    rests = f"rests on the gap {', '.join(gaps)}" if gaps else "sound"
    tightest = tightest_sound(bounds)
    return Privacy(
        claimed=given.epsilon,
        upper=tightest.epsilon.upper if tightest and tightest.epsilon else None,
        gap=None if tightest else ", ".join(gaps) or next((b.gap for b in bounds if b.gap), None),
        empirical_lower=None,
        delta=delta,
        adversary=adversary,
        neighbours=neighbours,
        verdict=None,
        bounds=bounds,
        estimators=[],
        gap_explanations={
            name: GAPS[name]
            for name in dict.fromkeys(part for b in bounds for part in (b.gap or "").split(","))
            if name in GAPS
        },
        release={
            "channel": release.channel,
            "sigma": release.sigma,
            "noise": release.noise,
            "clip": release.clip,
            "noise_multiplier": release.noise_multiplier(neighbours),
            "rounds": release.rounds,
            "participations": release.participations,
            "words": f"noise of standard deviation {release.sigma:.6g} on every coordinate of a row clipped to "
            f"{release.clip:g}, {release.channel} channel, against the {adversary}, {neighbours}: {rests}",
        },
        not_audited="the label game is played on the scalar channel; noise on another is accounted, not audited",
    )
