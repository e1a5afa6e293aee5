"""Membership by the loss, by likelihood ratios of shadow models (LiRA), and by ratios to a population (RMIA).

Loss (Yeom et al., CSF 2018): members are fitted better, by one threshold for all. LiRA (Carlini et al., S&P 2022): a
record's confidence log(p / (1 - p)) is about Gaussian over models that trained on it, and over models that did not:
shadow models of the adversary's own give both fits. Online: the ratio of the two densities; offline: how far beyond the
fit of models without it, which is better where models underfit and both densities are nearly one. RMIA (offline;
Zarifzadeh, Liu and Shokri, ICML 2024): a record x is likelier a member the more records z of the population it beats,
(p(x | target) / p(x)) / (p(z | target) / p(z)) >= gamma, where p(.) is the mean over shadow models; offline these
trained on neither, and p = ((1 + a) p_out + (1 - a)) / 2 stands for the mean over models with and without a record.

A client has no released model; what its mail tells of a record stands for the confidence (`attacks.membership.mail`).
"""

from dataclasses import replace

import numpy as np

from mechanisms.core.channel import View

from ..core import needs
from ..core.knowledge import Knowledge, Population
from ..core.metrics import Booleans, Floats, Ints, trial_areas
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Condition, Goal, Needs, Positive, Setup
from .mount import half_of_pool, membership_rounds, mount_membership, overfitted


def by_loss(view: View, known: Knowledge) -> Floats:
    """Return scores (targets, P): log p of each record under the released model, or a client's confidence."""
    confidence = known.granted(Population).confidence
    if view.adversary.kind == "client":
        return confidence
    return np.asarray(-np.logaddexp(0.0, -confidence))


def _of(adversary: str, need: Condition) -> Condition:
    """Need something where this is the adversary."""
    return lambda setting: need(setting) if setting.adversary == adversary else None


def _record_by_record(setting: AttackSetting) -> str | None:
    """Need answers about each record by itself: gradients, or predictions that a system serves."""
    if "prediction" in setting.told:
        return None
    return needs.downlink(True, TELLS_NOTHING)(setting)


TELLS_NOTHING = "a client's mail holds no gradient of a record, so both candidates get one score: see membership_lira"
LOSS_SPEC = AttackSpec(
    name="membership_loss",
    summary="membership by a global threshold on the released model's loss, or on a client's mail (Yeom et al. 2018)",
    adversaries=("release", "client"),
    infer=by_loss,
    mounted_by=mount_membership,
    goal=Goal(
        Positive("membership_loss on labels learnt by heart, no noise: must be 0.6 at least", overfitted, 0.6),
        reveals="membership",
    ),
    needs=Needs(
        suggests={"epochs": 100},
        conditions=(
            _of("release", needs.predictions),
            _of("client", _record_by_record),
            _of("client", needs.one_batch_size),
        ),
    ),
    setup=Setup(trains_on=half_of_pool, rounds=membership_rounds, options={"pool": 512, "shadows": 2}),
)


# Parts of the shadow models that stand in the place of targets in turn, to choose a variant.
FOLDS = 8


def by_likelihood(view: View, known: Knowledge) -> Floats:
    """Return scores (targets, P): log-likelihood ratios (online), or standardised distances (offline).

    Of several queries about each record they add up: the covariance of the answers is taken to be diagonal.
    """
    population = known.granted(Population)
    confidence = _queries(population.confidence, population.copies)
    shadows = _queries(population.shadows, population.shadows_copies)
    variant = known.options["variant"]
    if variant == "auto":
        variant = better_variant(shadows, population.members)
    return _scores(variant, confidence, shadows, population.members)


def _queries(confidence: Floats, copies: Floats) -> Floats:
    """Put answers (n, P) about records and (n, Q, P) about copies of them together: (n, 1 + Q, P)."""
    return np.concatenate((confidence[:, None], copies), 1)


def _online(confidence: Floats, shadows: Floats, members: Booleans) -> Floats:
    inside = _log_density(confidence, *fits(shadows, members))
    return inside - _log_density(confidence, *fits(shadows, ~members))


def _offline(confidence: Floats, shadows: Floats, members: Booleans) -> Floats:
    mean, variance = fits(shadows, ~members)
    return np.asarray((confidence - mean) / np.sqrt(variance))


VARIANTS = {"online": _online, "offline": _offline}


def _scores(variant: str, confidence: Floats, shadows: Floats, members: Booleans) -> Floats:
    """Return scores (n, P) of answers (n, queries, P) beside those of shadow models (S, queries, P)."""
    queries = range(confidence.shape[1])
    each = [VARIANTS[variant](confidence[:, q], shadows[:, q], members) for q in queries]
    return np.asarray(np.sum(each, axis=0))


def better_variant(shadows: Floats, members: Booleans) -> str:
    """Return the name in `VARIANTS` of what tells members from others better among shadow models.

    Each of `FOLDS` parts of the shadow models is attacked by the others, by both variants; the larger mean area under
    the ROC curve decides. What the shadow models of answers (S, queries, P) trained on is known, `members` (S, P). A
    single one leaves nothing to attack it by: offline, which has fewer numbers to fit.
    """
    folds = np.arange(len(shadows)) % FOLDS
    areas = dict.fromkeys(("offline", "online"), 0.0)
    for left in (folds == fold for fold in range(min(FOLDS, len(shadows)))):
        if left.all():
            break
        for name in areas:
            scores = _scores(name, shadows[left], shadows[~left], members[~left])
            areas[name] += trial_areas(scores, members[left]).sum()
    return max(areas, key=areas.__getitem__)


def fits(confidence: Floats, chosen: Booleans) -> tuple[Floats, Floats]:
    """Return mean and variance (P,) of each record's confidence (S, P) over the `chosen` models, booleans (S, P).

    Variances lean on one for all records by as much as they are alike: on an inverse gamma prior that is fitted to them
    (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, section 6.2). Means lean on that over
    all records where a record has no such model.
    """
    counts = chosen.sum(0)
    own = np.where(chosen, confidence, 0.0).sum(0) / np.maximum(counts, 1)
    mean = np.where(counts > 0, own, confidence[chosen].mean())
    squares = np.where(chosen, (confidence - mean) ** 2, 0.0).sum(0)
    free = np.maximum(counts - 1, 0)
    degrees, typical = variance_prior(squares, free)
    return mean, np.maximum((squares + degrees * typical) / (free + degrees), 1e-12)


# So many degrees of freedom leave no record a variance of its own.
ALIKE = 1e6


def variance_prior(squares: Floats, free: Ints) -> tuple[float, float]:
    """Return degrees of freedom and variance of the prior, by sums of squares (P,) of `free` (P,) degrees."""
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    some = (free > 0) & (squares > 0)
    if not some.any():
        return ALIKE, 0.0
    half = free[some] / 2.0
    logs = np.log(squares[some] / (2.0 * half)) - digamma(half) + np.log(half)
    excess = logs.var() - polygamma(1, half).mean()
    degrees = ALIKE
    if excess > polygamma(1, ALIKE / 2.0):
        degrees = 2.0 * brentq(lambda half: polygamma(1, half) - excess, 1e-6, ALIKE / 2.0)
    return degrees, float(np.exp(logs.mean() + digamma(degrees / 2.0) - np.log(degrees / 2.0)))


def _log_density(values: Floats, mean: Floats, variance: Floats) -> Floats:
    return -0.5 * ((values - mean) ** 2 / variance + np.log(variance))


def _copies(setting: AttackSetting) -> str | None:
    """Need dense rows and a released model to ask about copies of records."""
    if setting.options.get("queries_per_record", 1) == 1:
        return None
    if setting.adversary == "client" or not setting.method.capabilities.simulated:
        return "use queries_per_record 1: there is no released model to ask about changed copies of records"
    if all(block.dtype.kind == "f" for block in setting.dataset.train.features):
        return None
    return "use queries_per_record 1: token ids have no copies nearby"


LIRA_SPEC = replace(
    LOSS_SPEC,
    name="membership_lira",
    summary="membership by likelihood ratios of shadow models' fits to each record, online or offline (LiRA)",
    infer=by_likelihood,
    goal=replace(
        LOSS_SPEC.goal,
        positive=Positive(
            "membership_lira on labels learnt by heart, no noise: must be 0.65 at least", overfitted, 0.65
        ),
    ),
    needs=replace(
        LOSS_SPEC.needs,
        conditions=(
            _of("release", needs.predictions),
            _of("client", needs.mail),
            _of("client", needs.one_batch_size),
            _copies,
        ),
    ),
    setup=replace(
        LOSS_SPEC.setup,
        options={"pool": 512, "shadows": 64, "variant": "auto", "queries_per_record": 1},
        choices={"variant": ("auto", *VARIANTS)},
        in_pilot={"shadows": 16},
    ),
)


def by_ratios(view: View, known: Knowledge) -> Floats:
    """Return scores (targets, P): the share of population records that each record beats by gamma."""
    population = known.granted(Population)
    without = ~population.members
    out = np.where(without, _probability(population.shadows), 0.0).sum(0) / np.maximum(without.sum(0), 1)
    out_outside = _probability(population.shadows_outside).mean(0)
    a = known.options["a"]
    gamma = known.options["gamma"]
    mean, mean_outside = (0.5 * ((1.0 + a) * p + (1.0 - a)) for p in (out, out_outside))
    ratios = _probability(population.confidence) / np.maximum(mean, 1e-12)
    outside = _probability(population.outside) / np.maximum(mean_outside, 1e-12)
    return np.stack([shares_beaten(r, z, gamma) for r, z in zip(ratios, outside, strict=True)])


def shares_beaten(ratios: Floats, population: Floats, gamma: float) -> Floats:
    """Return the share of `population` (n,) that each of `ratios` (P,) is at least `gamma` times as large as."""
    ordered = np.sort(population * gamma)
    return np.searchsorted(ordered, ratios, side="right") / len(ordered)


def _probability(confidence: Floats) -> Floats:
    return np.exp(-np.logaddexp(0.0, -confidence))


RMIA_SPEC = replace(
    LOSS_SPEC,
    name="membership_rmia",
    summary="membership by pairwise likelihood ratios against a population, with offline shadow models (RMIA)",
    adversaries=("release",),
    infer=by_ratios,
    goal=replace(
        LOSS_SPEC.goal,
        positive=Positive("membership_rmia on labels learnt by heart, no noise: must be 0.8 at least", overfitted, 0.8),
    ),
    needs=replace(LOSS_SPEC.needs, conditions=(needs.predictions,)),
    setup=replace(
        LOSS_SPEC.setup, options={"pool": 512, "shadows": 64, "a": 0.3, "gamma": 2.0}, in_pilot={"shadows": 16}
    ),
)
