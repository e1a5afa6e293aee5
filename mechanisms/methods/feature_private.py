"""Features that are private from the server: noised components of each client's block, uploaded once, and a head.

A client keeps its block from everybody, the server included. It releases the noised sum of outer products of its
records, from which principal components follow (Dwork et al., STOC 2014, "Analyze Gauss"). Then it uploads, once, the
`embedding` first components of each record, centred and scaled by that sum, clipped and noised. The sum is over all
records and costs little of the budget; each record's own row needs noise many times as large as itself.

The server knows the labels and how wide the noise is. Its head is linear discriminant analysis of which the covariance
of the noise is taken away: a regression with errors in its variables (Fuller 1987, section 1.2). All of it is
post-processing. A record that is replaced moves a client's sum and its rows by 2C each, so that over M clients

    mu^2 = M (2 C / sigma)^2 / (1 - s),   where a share s of mu^2 is that of the sums.

Labels stay open to whoever sees the head, and what is uploaded to be predicted is not noised.

Rules for components and for the least eigenvalue were settled on digits, adult, bank and breast-cancer.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from dpzv_audit.accounting import Release, sigma_sound

from ..core.config import HeadConfig, Positive
from ..core.context import Deployment, RunContext, TrainingData
from ..core.method import Games, MethodSpec, Protection, Run

_ONCE = "everything is uploaded once, and the head is solved for"
_STILL = "clients have noised components, which do not move"
_UNUSED = {
    "epochs": _ONCE,
    "batch_size": _ONCE,
    "sampler": _ONCE,
    "sample_rate": _ONCE,
    "rate_schedule": _ONCE,
    "server_rate": _ONCE,
    "server_momentum": _ONCE,
    "client_rate": _STILL,
    "momentum": _STILL,
    "client_model": _STILL,
    "transformer": _STILL,
    "frozen_blocks": _STILL,
    "client_blocks": _STILL,
    "half_precision": _STILL,
    "shift": _STILL,
    "hidden": "the head is one linear layer",
    "top_model": "the head is the server's model",
    "softmax_outputs": "the head is linear discriminant analysis",
}


class FeaturePrivateConfig(HeadConfig):
    """Noised components of every client, once. The one round is the server's."""

    unused: ClassVar[Mapping[str, str]] = _UNUSED

    epochs: int = 1
    """One round: everything is uploaded once."""
    embedding: int = Field(4, ge=1, le=1000)
    """Most components of a client that are uploaded: each carries as much noise as all of a record's together."""
    epsilon: float | None = Field(4.0, gt=0)
    """Claimed epsilon, from which the noise follows."""
    sigma: float | None = Field(None, ge=0)
    """Standard deviation of the noise on each component; overrides the rest."""
    clip: Positive = 1.0
    """L2 clip of a record's components, C, in units of the root of their mean square."""
    statistics: float = Field(0.1, gt=0, lt=1)
    """Share of the privacy budget, of mu^2, that the sums take from which the components follow."""

    @property
    def label_free(self) -> Literal["components"]:
        """See `TrainingConfig.label_free`."""
        return "components"

    def row_sigma(self, clients: int) -> float:
        """Return the standard deviation of noise on each component of a row, 2 C sqrt(M) / (mu sqrt(1 - s)), or 0."""
        if self.sigma is not None:
            return self.sigma
        if self.calibration == "none" or self.epsilon is None:
            return 0.0
        whole = sigma_sound(
            self.epsilon,
            self.delta,
            clip=self.clip,
            batch_size=1,
            participations=clients,
            neighbours="replace-record",
        )
        # A hair more, so that no rounding of the two parts makes them more than the whole.
        return whole / math.sqrt(1.0 - self.statistics) * (1.0 + 1e-12)

    def statistics_sigma(self, clients: int) -> float:
        """Return the standard deviation of the noise on a sum of outer products, each clipped to 1."""
        share = self.statistics
        return self.row_sigma(clients) / self.clip * math.sqrt((1.0 - share) / share)


def _run(data: TrainingData, config: FeaturePrivateConfig, context: RunContext) -> Run:
    """Start the one round, which loads torch: settings and bounds need none."""
    from .feature_private_run import FeaturePrivateRun

    return FeaturePrivateRun(data, config, context)


def _released(config: FeaturePrivateConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return the noised rows of all clients, and beside them the mu of their sums; () without noise."""
    clients = deployment.clients
    sigma = config.row_sigma(clients)
    if sigma == 0.0:
        return ()
    release = Release(
        batch_size=deployment.records,
        dataset_size=deployment.records,
        rounds=clients,
        clients=clients,
        clip=config.clip,
        sigma=sigma,
        sampler="shuffled",
        server_update="none",
        client_update="frozen",
        channel="embedding",
        server_mu=2.0 * math.sqrt(clients) / config.statistics_sigma(clients),
        noise=config.noise,
        seeded_noise=deployment.seeded_noise,
        data_dependent_side=deployment.data_dependent_side,
    )
    return (release,)


def _protection(config: FeaturePrivateConfig) -> Protection:
    nothing = Protection(epsilon=config.epsilon, delta=config.delta)
    if not config.noised:
        return nothing
    return replace(
        nothing,
        words="features of the training records, from the server too; labels stay open to whoever sees the head",
        channel="embedding",
        audience=("server",),
        neighbours="replace-record",
        draws=True,
    )


SPEC = MethodSpec(
    name="feature-private",
    summary="clients send noised components once, private from the server; a linear head takes the noise into account",
    config=FeaturePrivateConfig,
    run=_run,
    released=_released,
    protection=_protection,
    games=lambda config: Games(
        played=("rows",), why_not="the command audit method plays the game of a record's noised rows"
    ),
    downlink="none",
    own_noise=True,
    # These are the method's, whatever others take for the data.
    defaults={"embedding": 4, "epochs": 1},
)
