"""DPZV: differentially private zeroth-order vertical federated learning (paper 001, algorithm 1), for K replicas.

Each round the active client sends its embeddings under w_m + lambda u and w_m - lambda u; the server answers with one
number, the mean of the records' clipped loss differences plus Gaussian noise; the client steps along u by it.
`dpzv-sound` is the same with the server perturbed in the same two evaluations, so that one noised release pays for
both updates and the server's state is a function of released values.

The scalar (eqs. 7 and 8) is that of `core/scalars.py`. The server: `sgd` and `zo` step by true labels without noise
(options i, ii); `joint-zo` perturbs the server in the same two evaluations and steps by the released scalar; `dp-sgd`
clips and noises per-record gradients; `dp-zo` clips and noises per-record loss differences at w_0 +- lambda_0 u_0, as
theorem B.1 counts (2 sigma_dp^2 d_0 in its G_0), while algorithm 1 has neither; `frozen` does nothing.
"""

from dataclasses import replace

from ..core.context import RunContext, TrainingData
from ..core.method import Differences, Games, MethodSpec, Protection, Run
from ..core.scalars import ScalarConfig, plan_run, released_scalars


class DPZVConfig(ScalarConfig):
    """DPZV (paper 001, algorithm 1) with every reading that the paper leaves open; defaults are table 3's values."""


def _run(data: TrainingData, config: DPZVConfig, context: RunContext) -> Run:
    """Return the run, whose module is loaded where there is a training alone: settings and bounds need no torch."""
    from .dpzv_run import DPZVRun

    return DPZVRun(data, config, context)


def _protection(config: DPZVConfig) -> Protection:
    scalars = config.sigma != 0.0 if config.sigma is not None else config.calibration != "none"
    server = config.server_noised and config.server_rate > 0 and config.top_model
    if scalars:
        words = "the scalar from the server to the client, hence labels; nothing protects the embeddings sent up"
        if config.server_update == "joint-zo":
            words += "; the server's state is a function of released scalars"
        elif server:
            words += "; the server's updates have noise of their own"
    elif server:
        words = "the server's own updates; nothing protects the scalars, or the embeddings sent up"
    else:
        words = Protection.words
    return Protection(
        words=words,
        channel="scalar",
        audience=("client", "colluding-clients", "all-but-one", "malicious-client", "eavesdropper", "release"),
        draws=scalars or server,
        not_released="the scalars are sent without noise" if server and not scalars else "",
        epsilon=config.epsilon,
        delta=config.delta,
    )


def _differences(config: DPZVConfig) -> Differences:
    return Differences(
        smoothing=config.smoothing,
        two_sided=True,
        records=config.batch_size,
        clip=config.clip,
        unit=config.difference == "central",
        pairs=config.perturbation == "functional",
    )


DPZV = MethodSpec(
    name="dpzv",
    summary="asynchronous, zeroth order; the server answers with one clipped, noised scalar (DPZV, algorithm 1)",
    config=DPZVConfig,
    run=_run,
    released=released_scalars,
    protection=_protection,
    games=lambda config: Games(("scalars",)),
    downlink="scalar",
    plan=plan_run,
    differences=_differences,
    deviation="uploads",
    own_noise=True,
)
DPZV_SOUND = replace(
    DPZV,
    name="dpzv-sound",
    summary="dpzv whose server steps by the same noised scalar and whose noise is calibrated against known batches",
    defaults={
        "server_update": "joint-zo",
        "calibration": "sound",
        "clip": 1.0,
        "client_rate": 1e-3,
        "server_rate": 1e-3,
        "momentum": 0.0,
        "server_momentum": 0.0,
    },
)
