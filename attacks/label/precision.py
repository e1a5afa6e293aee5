"""One label from the low bits of noised scalars (Mironov, CCS 2012, for Laplace noise in floating point).

Who knows everything but one label can play the training again under either label that the record may have: both get
the scalars that were released, so that batches, directions, models and the server's state are those of the training
wherever the label is right. Each round then asks whether any noise leads from the sum under that label to the scalar
that was released, in the arithmetic of the channel itself. Floats have gaps, and the gaps of the noise often leave no
float that does: then the label is impossible, whatever the standard deviation.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, Positive
from attacks.core.controls import CERTAIN
from attacks.core.planted import labels_by_heart
from attacks.label.mount_precision import labels_under, mount_precision, precision_rounds
from dpzv_audit.errors import InputError
from mechanisms.context import RunContext
from mechanisms.dpzv import ScalarChannel, scalar_config
from mechanisms.training_data import TrainingData, dtype_of
from mechanisms.views import View


def by_floats(sums: Tensor, released: Tensor) -> Tensor:
    """Return whether adding some float to `sums` gives `released`, both (K,) and of one dtype.

    The difference rounded once is the float nearest to the exact one. If it does not lead there no float does, but for
    a power of two, below which floats lie closer than above it: there a neighbour may.
    """
    nearest = released - sums
    beside = [torch.nextafter(nearest, torch.full_like(nearest, end)) for end in (-torch.inf, torch.inf)]
    return (torch.stack((nearest, *beside)) + sums == released).any(0)


def by_steps(sums: Tensor, released: Tensor, *, unit: float, channel: ScalarChannel | None) -> Tensor:
    """Return whether adding whole steps of noise to `sums` (K,) gives `released` (K,).

    A step stands for `unit` in the released mean. With a channel, `sums` count steps and its own arithmetic turns them
    into a scalar; without, `sums` are means already.
    """
    if channel is None:
        steps = _around(((released - sums) / unit).round())
        return (sums + steps * unit == released).any(0)
    steps = _around((released.to(torch.float64) / unit - sums).round())
    return (channel.scalars(sums + steps) == released).any(0)


def _around(steps: Tensor) -> Tensor:
    return steps + torch.tensor([[-1.0], [0.0], [1.0]], dtype=steps.dtype, device=steps.device)


class Replay:
    """Puts released scalars (T, K) in the place of a run's own, and keeps which trainings can have released them."""

    def __init__(self, released: Tensor, known: Knowledge) -> None:
        config = scalar_config(known.method, known.config)
        if config is None or known.but_one is None:
            raise TypeError("a replay needs a configuration of DPZV and everything but one label")
        self._released = released
        self._noise = known.sigma > 0.0
        self._unit = known.but_one.unit
        self._channel: ScalarChannel | None = None
        context = RunContext(seed=known.seed, replicas=known.replicas, device=_device(released))
        channel = ScalarChannel(config, known.sigma, context)
        if channel.grid is not None:
            self._channel, self._unit = channel, channel.grid.step / config.batch_size
        self._round = 0
        self.possible = torch.ones(released.shape[1], dtype=torch.bool, device=released.device)

    def noised(self, sums: Tensor) -> Tensor:
        """Ask of `sums` (K,) without noise whether they can have led to this round's scalars; see `RunContext`."""
        released = self._released[self._round]
        if not self._noise:
            self.possible &= sums == released
        elif self._unit is not None:
            self.possible &= by_steps(sums, released, unit=self._unit, channel=self._channel)
        else:
            self.possible &= by_floats(sums, released)
        return sums

    def released(self, scalars: Tensor) -> Tensor:
        """Return this round's scalars (K,) as they were released; see `RunContext`."""
        self._round += 1
        return self._released[self._round - 1]


@torch.no_grad()
def infer(view: View, known: Knowledge) -> np.ndarray:
    """Return which of the two labels can have led to all released scalars, booleans (K, 2).

    No noise is drawn and no private stream is read: batches, directions and starts are public.
    """
    released = view.scalars()
    return np.stack([_possible(released, known, which) for which in (0, 1)], 1)


def _possible(released: Tensor, known: Knowledge, which: int) -> np.ndarray:
    config, given = known.config, known.but_one
    if given is None:
        raise InputError("label_precision needs scalars of DPZV, and everything but one label")
    dataset = given.dataset
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=_device(released), labels=labels_under(given, which))
    replay = Replay(released, known)
    context = RunContext(
        seed=known.seed,
        replicas=known.replicas,
        device=_device(released),
        noised=replay.noised,
        released=replay.released,
    )
    run = known.method.start(data, config, context)
    for played in range(1, len(released) + 1):
        run.step()
        if played % known.batches == 0:
            given.progress(which * len(released) + played)
    return replay.possible.cpu().numpy()


def _device(tensor: Tensor) -> str:
    return tensor.device.type


def unfit(setting: AttackSetting) -> str | None:
    """Why there are no noised scalars whose bits could be read, or why nobody can play the training again."""
    config = scalar_config(setting.method, setting.config)
    if config is None:
        return "it releases no noised scalar, whose bits the attack reads"
    if config.server_update == "dp-sgd" and config.top_model and config.server_rate > 0:
        return "its server draws noise of its own (server_update dp-sgd), so that nobody can play its state again"
    return None


def float_noise(setting: AttackSetting) -> AttackSetting:
    """DPZV with float noise on records of noise: with a server trained by sgd every later scalar tells the label."""
    options = {"noise": "float", "sigma": 0.2, "clip": 1.0, "batch_size": 16, "epochs": 24, "server_rate": 0.05}
    return setting.on("dpzv", options, dataset=labels_by_heart(setting.dataset, setting.seed), trials=8)


SPEC = AttackSpec(
    name="label_precision",
    summary="one label by which of two can have led to the released scalars, bit by bit; float noise proves it",
    adversaries=("all-but-one",),
    infer=infer,
    mounted_by=mount_precision,
    positive=Positive("label_precision on float noise: must be 1", float_noise, CERTAIN),
    unfit=unfit,
    rounds=precision_rounds,
    trials=24,
)
