"""The privacy section of a baseline's result: what the noise on its embeddings or gradients is worth."""

from __future__ import annotations

from dpzv_audit.accounting import GAPS, tightest_sound, upper_bounds
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evidence import AdversaryName
from dpzv_audit.results import Privacy
from mechanisms import ProtectedConfig
from mechanisms.calibration import AUDIENCE, channel_of, guarantee


def faces(config: ProtectedConfig, adversary: str) -> AdversaryName | None:
    """`adversary` by its name if the noise of `config` stands against it, else None: noise elsewhere says nothing."""
    if not config.protected:
        return None
    return next((name for name in AUDIENCE[channel_of(config)] if name == adversary), None)


def channel_section(
    config: ProtectedConfig, dataset: VerticalDataset, *, seed: int, adversary: AdversaryName, seeded_noise: bool
) -> Privacy:
    """The claim and the upper bounds against `adversary`, whom the noise faces; nothing here is audited."""
    given = guarantee(
        config,
        records=len(dataset.train),
        clients=dataset.clients,
        seed=seed,
        adversary=adversary,
        seeded_noise=seeded_noise,
        data_dependent_side=bool(dataset.fitted),
    )
    release = given.release
    bounds = upper_bounds(release, delta=config.delta, adversaries=[adversary], neighbours=[given.neighbours])
    tightest = tightest_sound(bounds)
    return Privacy(
        claimed=config.epsilon,
        upper=tightest.epsilon.upper if tightest and tightest.epsilon else None,
        gap=None if tightest else ", ".join(given.gaps) or next((b.gap for b in bounds if b.gap), None),
        empirical_lower=None,
        delta=config.delta,
        adversary=adversary,
        neighbours=given.neighbours,
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
            "noise_multiplier": release.noise_multiplier(given.neighbours),
            "rounds": release.rounds,
            "participations": release.participations,
            "words": given.words,
        },
        not_audited="the label game is played on the scalar channel; noise on another is accounted, not audited",
    )
