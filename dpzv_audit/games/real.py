"""Plays a game on real trainings: a stack of replicas in each world, scored from the adversary's view.

Run k of the world "out" is replica 2k and of the world "in" replica 2k + 1: a chunk of pairs holds both.

`Twins` plays a transcript again under both worlds: the exact likelihood ratio for those who receive every scalar. An
adversary in the sense of differential privacy knows all but the canary: the other records, the starts, the batches.
Given the scalars sent so far it can compute what the server would have sent without noise in either world, m_0 and m_1,
so that each round adds ln N(x; m_1, s^2) - ln N(x; m_0, s^2) = (m_1 - m_0)(x - (m_0 + m_1)/2) / s^2 to the score.
Two rows of one stack do this while the training runs: both get the scalar of the world that is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.data.files import model_digest
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.games.engine import Arrays
from dpzv_audit.games.fitted import summaries
from dpzv_audit.games.game import Game, Worlds, score_kind, worlds_of
from dpzv_audit.games.transcript import Sampling, cap_weights, known_ids_score, mixture_score
from dpzv_audit.games.worst_case import CanaryClient, train_aimed
from mechanisms.core.channel import SERVER, Adversary, Message, View, ViewRecorder
from mechanisms.core.context import Deployment, Plan, RunContext, repeats_of
from mechanisms.core.data import TrainingData, dtype_of
from mechanisms.core.method import Run
from mechanisms.methods.dpzv import DPZVConfig, ScalarChannel

Rows = dict[str, np.ndarray]
"""Arrays with a row a training."""


@dataclass(frozen=True)
class RealTrials:
    """Trials of `game` on `dataset` (see `dpzv_audit.games.engine.Trials`).

    Arrays: `in_scores`, `out_scores` (or `in_features`, `out_features` for a fitted score), `in_counts`, `out_counts`
    (the adversary's own rounds with the canary), and by the score `in_information` and `saturated`.
    """

    game: Game
    dataset: VerticalDataset
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.game.adversary == "client" and self.plan.rounds_by_client[0] == 0:
            raise InputError(
                f"‹epochs› {self.game.config.epochs} are too few: client 1 is never active, and its view is what is "
                "scored, give more"
            )
        hidden = not self.game.knows_ids and self.game.config.sampler == "poisson"
        if hidden and self.game.others == "saturated" and self.game.canary == "worst-case":
            raise InputError(
                "‹others› saturated hides the canary behind the random size of a Poisson batch from an adversary "
                "without batch ids, must be zero"
            )

    @cached_property
    def worlds(self) -> Worlds:
        """The neighbouring data sets."""
        return worlds_of(self.game, self.dataset)

    @cached_property
    def plan(self) -> Plan:
        """Schedule and noise; public, and the same in both worlds."""
        return self.game.method.scalar_plan(
            self.game.config,
            Deployment(
                records=len(self.worlds.data[1].train),
                clients=self.dataset.clients,
                seed=self.seed,
                repeats=repeats_of(self._canaries((self.game.record,))),
            ),
        )

    @cached_property
    def sampling(self) -> Sampling:
        """How records come into batches."""
        return Sampling.of(self.game.config, len(self.worlds.data[1].train), self.plan.active)

    @property
    def sees_all(self) -> bool:
        """Whether the adversary receives the scalars of every client."""
        return self.game.adversary == "colluding-clients" or self.dataset.clients == 1

    @property
    def kind(self) -> str:
        """How the game is scored, see `game.SCORES`; joint-zo's other records are known to who plays it again."""
        kind = score_kind(self.game, self.dataset.clients)
        joint = self.game.config.top_model and self.game.config.server_update == "joint-zo"
        # A replay needs both worlds to send the same messages, which they do not where one of them sends a 0.
        replayed = joint and self.sees_all and self.game.neighbours != "zero-out"
        return "replay" if kind == "residuals" and replayed else kind

    def facts(self) -> dict[str, object]:
        """See `Trials.facts`."""
        return {
            "trials": "real",
            **self.game.facts(),
            "data": self.dataset.fingerprint,
            "model": model_digest(self.game.config.transformer),
            "seed": self.seed,
            "device": self.device,
            "threads": torch.get_num_threads(),
        }

    @torch.no_grad()
    def __call__(self, first: int, last: int) -> Arrays:
        """Train pairs `first` to `last` and score every run."""
        if self.worlds.label_alone:
            replicas = range(2 * first, 2 * last)
            both = self._play(self.worlds.data[0], replicas, [k % 2 for k in replicas])
            sides = {world: {name: rows[world::2] for name, rows in both.items()} for world in (0, 1)}
        else:
            sides = {
                world: self._play(
                    self.worlds.data[world], range(2 * first + world, 2 * last, 2), [world] * (last - first)
                )
                for world in (0, 1)
            }
        return {
            f"{side}_{name}": rows for side, world in (("out", 0), ("in", 1)) for name, rows in sides[world].items()
        }

    def _canaries(self, records: tuple[int, ...]) -> dict[int, CanaryClient]:
        """All clients hold a part of a worst-case canary; client 1 repeats its first batches as an attacked training.

        For other canaries clients follow the protocol.
        """
        game = self.game
        if game.canary != "worst-case":
            return {}
        return {
            m: CanaryClient(
                records,
                self.worlds.labels,
                game.others,
                first_pass_repeats=game.first_pass_repeats if m == 1 else 1,
            )
            for m in range(1, self.dataset.clients + 1)
        }

    def _play(self, dataset: VerticalDataset, replicas: Sequence[int], worlds: list[int]) -> Rows:
        """Train `replicas` in their `worlds` and score them."""
        game, config = self.game, self.game.config
        twins = None
        rows, row_worlds = list(replicas), worlds
        if self.kind == "replay":
            # Two rows a training: what either world would send, given what was really sent.
            twins = Twins(game, self.plan.sigma, worlds, replicas, seed=self.seed, config=config, device=self.device)
            rows, row_worlds = twins.rows, twins.worlds
        labels = np.tile(dataset.train.labels, (len(rows), 1))
        present = self.worlds.present[worlds[0]]
        if self.worlds.label_alone:
            labels[:, game.record] = [self.worlds.labels[world] for world in row_worlds]
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=self.device, labels=labels)
        canaries = self._canaries((game.record,) if present else ())
        clients = (1,) if game.adversary == "client" else tuple(range(1, self.dataset.clients + 1))
        kind = "eavesdropper" if game.adversary == "release" else game.adversary
        recorder = ViewRecorder(Adversary(kind, clients), kinds=("scalar",))
        context = RunContext(
            seed=self.seed,
            replicas=rows,
            behaviours=canaries,
            observers=(twins,) if twins else (recorder,),
            device=self.device,
            plan=self.plan,
            noised=twins,
        )
        run = game.method.start(data, config, context)
        saturated = train_aimed(run, canaries, config, len(self.plan.active), self.worlds.labels, self.seed)
        found = twins.scores() if twins else self._scored(recorder.view, run, worlds[0], data)
        if canaries:
            found["saturated"] = np.full(len(replicas), saturated)
        return found

    def _scored(self, view: View, run: Run, world: int, data: TrainingData) -> Rows:
        game = self.game
        if self.kind == "membership":
            return {"scores": self._membership(run)}
        scalars = view.scalars().double().cpu().numpy()
        if self.kind == "mixture":
            return {"scores": self._mixture(scalars)}
        ids = view.batches() if game.knows_ids else None
        held = None if ids is None else (ids == game.record).any(2).cpu().numpy()
        if self.kind == "fitted":
            features = summaries(scalars, held, skip_held=game.canary == "state")
            return {"features": features} if held is None else {"features": features, "counts": held.sum(0)}
        assert ids is not None
        assert held is not None
        unit = game.config.clip / game.config.batch_size if game.others == "saturated" else 0.0
        others = ((ids >= 0).sum(2).cpu().numpy() - 1) * unit
        counted = held * self._cap_weights(held)
        return {"scores": known_ids_score(scalars, counted, others), "counts": (counted > 0).sum(0)}

    def _cap_weights(self, held: np.ndarray) -> np.ndarray:
        """How much each round with the canary counts, (T, n): under a cap on participations later ones say nothing."""
        cap = self.game.config.participation_cap
        if cap is None:
            return np.ones(held.shape)
        before = np.minimum(np.cumsum(held, 0) - held, cap)
        if self.sees_all:
            return np.asarray(before < cap, dtype=np.float64)
        weights = cap_weights(self.sampling, 1, cap)
        return np.asarray(weights[np.arange(len(held))[:, None], before])

    def _mixture(self, scalars: np.ndarray) -> np.ndarray:
        """Scores of one who does not know the batches: `mixture_score` about what all batches add in common."""
        game, config = self.game, self.game.config
        unit = config.clip / config.batch_size
        common = config.batch_size * unit if game.others == "saturated" else 0.0
        mean_in, mean_out = (0.0, -2.0 * unit) if game.others == "saturated" else (unit, -unit)
        if game.neighbours in ("add-remove", "zero-out"):
            mean_out = 0.0
        return mixture_score(scalars - common, self.sampling, sigma=self.plan.sigma, mean_in=mean_in, mean_out=mean_out)

    def _membership(self, run: Run) -> np.ndarray:
        """Loss of the canary under the final model with its label of "out" less that with its label of "in".

        Where the record itself is added or replaced, its loss with its label of "in".
        """
        game, fed = self.game, run.federation
        inside = self.worlds.data[1].train
        rows = [torch.from_numpy(block[[game.record]]).to(self.device) for block in inside.features]
        typed = [row.to(fed.dtype) if row.dtype.is_floating_point else row for row in rows]
        embedded = [fed.embed_all(client, row) for client, row in zip(fed.clients, typed, strict=True)]
        logits: Tensor = fed.server.forward(fed.server_parameters, torch.cat(embedded, 2))[:, 0]
        losses = -torch.log_softmax(logits.double(), 1)
        own = losses[:, int(inside.labels[game.record])]
        difference = losses[:, self.worlds.labels[0]] - own if self.worlds.label_alone else -own
        return difference.nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30).cpu().numpy()


class Twins:
    """Two rows a training, one for each hypothesis; releases the real one's noised scalar to both, and scores it."""

    def __init__(
        self,
        game: Game,
        sigma: float,
        worlds: Sequence[int],
        replicas: Sequence[int],
        *,
        seed: int,
        config: DPZVConfig,
        device: str,
    ) -> None:
        self.rows = [k for k in replicas for _ in (0, 1)]
        self.worlds = [hypothesis for _ in replicas for hypothesis in (0, 1)]
        self._game = game
        self._real = torch.tensor([2 * place + world for place, world in enumerate(worlds)], device=device)
        self._noise = ScalarChannel(config, sigma, RunContext(seed=seed, replicas=replicas, device=device)).noise
        self._terms: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._held: list[Tensor] = []

    def __call__(self, sums: Tensor) -> Tensor:
        """Map both hypotheses' sums without noise (2n,) to the real one with noise, for both (`RunContext.noised`).

        On the grid the noise is a rounded Gaussian of thousands of steps and more: the ratio is that before rounding.
        """
        sent = sums[self._real] + self._noise.next()
        out, inside = sums.double().view(-1, 2).unbind(1)
        apart = (inside - out) / self._noise.std
        self._terms.append(apart * (sent.double() - 0.5 * (inside + out)) / self._noise.std)
        self._squares.append(apart.square())
        return sent.repeat_interleave(2)

    def on_message(self, message: Message) -> None:
        """Note which rounds held the canary."""
        if message.sender == SERVER and message.kind == "scalar" and message.ids is not None:
            self._held.append((message.ids[::2] == self._game.record).any(1))

    def on_note(self, party: int, round_: int, name: str, value: object) -> None:
        """Notes do not matter here."""

    def scores(self) -> dict[str, np.ndarray]:
        """Log-likelihood ratio of each training, its information (sum of ((m_1 - m_0)/s)^2), rounds with the canary.

        A `state` canary is scored on the rounds that do not hold it alone.
        """
        held = torch.stack(self._held)
        counted = ~held if self._game.canary == "state" else torch.ones_like(held)
        score = (torch.stack(self._terms) * counted).sum(0)
        information = (torch.stack(self._squares) * counted).sum(0)
        return {
            "scores": score.cpu().numpy(),
            "information": information.cpu().numpy(),
            "counts": held.sum(0).cpu().numpy(),
        }
