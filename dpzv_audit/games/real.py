"""Plays a game on real trainings: a stack of replicas in each world, scored from the adversary's view.

Run k of the world "out" is replica 2k and of the world "in" replica 2k + 1: a chunk of pairs holds both.

`Twins` plays a transcript again under both worlds: the exact likelihood ratio for those who receive every scalar. An
adversary in the sense of differential privacy knows all but the canary: the other records, the starts, the batches.
Given the scalars sent so far it can compute what the server would have sent without noise in either world, m_0 and m_1,
so that each round adds ln N(x; m_1, s^2) - ln N(x; m_0, s^2) = (m_1 - m_0)(x - (m_0 + m_1)/2) / s^2 to the score.
Two rows of one stack do this while the training runs: both get the scalar of the world that is real.

The worst-case canary goes through the real path: every client sends, for the canary, an embedding v as h+ and -v as h-,
under which the server's own loss difference is far below -C under one label and far above +C under the other; for the
other records 0 or +C.

`play_one_run` trains once with m such canaries whose labels are coin flips: the game of one-run audits (Steinke, Nasr
and Jagielski, NeurIPS 2023) with labels for membership. Fair coins b_i = +-1, flipped apart from each other, give each
canary one of two labels. With batch ids known, a scalar is (C/B) sum of b_i over the canaries in its batch, and noise,
so the best linear guess of all coins together is c A^T (c^2 A A^T + s^2 I)^-1 x, with A (T, m) the rounds that hold
each canary and c = C/B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mechanisms.core.channel import SERVER, Adversary, Message, Observer, View, ViewRecorder
from mechanisms.core.context import ClientTurn, Deployment, Plan, RunContext, TrainingData, dtype_of, repeats_of
from mechanisms.core.federation import Federation
from mechanisms.core.method import Run, federation_of
from mechanisms.core.replicas import Evaluator, ParameterStack
from mechanisms.core.rounds import Turn
from mechanisms.core.scalars import NoisedScalars, ScalarConfig
from mechanisms.core.streams import Batch
from mechanisms.methods.dpzv_run import DPZVRun

from ..base.errors import InputError
from ..base.seeds import Purpose, stream
from ..data.files import model_digest
from ..data.vertical import VerticalDataset
from .arrays import Arrays, Bools, Floats
from .game import CANARY, Game, Others, Worlds, worlds_of
from .scores import GameScores, GaussianGiven, scores_of, side_pair
from .transcript import Sampling, cap_weights, counted_law, known_ids_score, mixture_score, summaries, telling_count

_SAME = 1e-3
"""Relative spread of the information up to which a replayed canary counts as saturated in every round."""


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
                "without batch ids; use zero"
            )

    @cached_property
    def worlds(self) -> Worlds:
        """The neighbouring data sets."""
        return worlds_of(self.game, self.dataset)

    @cached_property
    def plan(self) -> Plan:
        """Schedule and noise; public, and the same in both worlds."""
        deployment = Deployment(
            records=self.records,
            clients=self.dataset.clients,
            seed=self.seed,
            repeats=repeats_of(self.canaries((CANARY,))),
        )
        return self.game.method.scalar_plan(self.game.config, deployment)

    @property
    def records(self) -> int:
        """Records in the world that has the canary."""
        return len(self.worlds.data[1].train)

    @cached_property
    def sampling(self) -> Sampling:
        """Sampling of records into batches."""
        return Sampling.of(self.game.config, self.records, self.plan.active)

    @property
    def sees_all(self) -> bool:
        """Whether the adversary receives the scalars of every client."""
        alone = self.dataset.clients == 1 or self.game.config.all_at_once
        return self.game.adversary == "colluding-clients" or alone

    @property
    def kind(self) -> str:
        """Kind of the scores, a key of `game.SCORES`: exact ones wherever what the adversary knows allows them.

        A transcript can be played again under both worlds by those who receive every scalar, where the server's own
        update draws no noise that they do not see; joint-zo's other records are known to who plays it again.
        """
        game = self.game
        config = game.config
        sees_all = game.knows_ids and self.sees_all
        if game.canary == "worst-case":
            # A replay needs both worlds to send the same messages, which they do not where one of them sends a 0.
            if sees_all and self._joint_zo and game.neighbours != "zero-out":
                return "replay"
            return "residuals" if game.knows_ids else "mixture"
        if game.adversary == "release":
            return "membership"
        return "replay" if sees_all and not config.server_noised else "fitted"

    @property
    def _joint_zo(self) -> bool:
        """Whether a top model steps by the released scalar, so that the other records add to it."""
        return self.game.config.top_model and self.game.config.server_update == "joint-zo"

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`.

        Residuals, and the replay of a worst-case canary that saturated the clip in every round, are Gaussian given the
        participations. Where the other records' part is not known, the residuals of joint-zo are not.
        """
        kind = self.kind
        scores = scores_of(arrays, kind)
        if scores.saturated is False or self.plan.sigma == 0.0 or self.game.config.clip_rule != "symmetric":
            return scores
        replayed = kind == "replay" and self.game.canary == "worst-case"
        if not (replayed or (kind == "residuals" and not self._joint_zo)):
            return scores
        gaussian = self.given(scores)
        if gaussian is None or (replayed and not _alike(arrays, gaussian.count)):
            return scores
        return replace(scores, given=gaussian)

    def given(self, scores: GameScores) -> GaussianGiven | None:
        """Return what makes the scores Gaussian, and the participations to condition on; None where that is unknown."""
        cap = self.game.config.participation_cap
        if cap is not None and not self.sees_all:
            return None  # what counts for one client depends on batches that it does not see
        if self.game.first_pass_repeats > 1:
            least, most = scores.participations or (0, 1)
            return GaussianGiven() if least == most else None
        return telling_count(counted_law(self.sampling, None if self.sees_all else (1,), cap))

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
        replicas = range(2 * first, 2 * last)
        if self.worlds.label_alone:
            both = self._play(self.worlds.data[0], replicas)
            sides = [{name: rows[world::2] for name, rows in both.items()} for world in (0, 1)]
        else:
            # A method of the user's own may keep state: no order is fixed.
            begins = int(stream(self.seed, Purpose.ORDER, first).integers(2))
            played = {world: self._play(self.worlds.data[world], replicas[world::2]) for world in (begins, 1 - begins)}
            sides = [played[0], played[1]]
        named = zip(("out", "in"), sides, strict=True)
        return {f"{side}_{name}": rows for side, arrays in named for name, rows in arrays.items()}

    def canaries(self, records: tuple[int, ...]) -> "dict[int, CanaryClient]":
        """Return all clients with a piece of a worst-case canary; client 1 repeats its first batches as attacked.

        For other canaries clients follow the protocol.
        """
        game = self.game
        if game.canary != "worst-case":
            return {}
        # Of parts that move together the first makes a record's whole difference, as it was aimed to.
        together = game.config.all_at_once
        return {
            1: CanaryClient(records, game.others, game.first_pass_repeats),
            **{
                m: CanaryClient(()) if together else CanaryClient(records, game.others)
                for m in range(2, self.dataset.clients + 1)
            },
        }

    def _play(self, dataset: VerticalDataset, replicas: Sequence[int]) -> Arrays:
        """Train `replicas`, each in its world, and score them."""
        # Two rows a training in a replay: what either world would send, given what was really sent.
        twins = Twins(self, replicas) if self.kind == "replay" else None
        worlds = [replica % 2 for replica in replicas] if twins is None else twins.worlds
        rows = replicas if twins is None else twins.rows
        labels = np.tile(dataset.train.labels, (len(rows), 1))
        if self.worlds.label_alone:
            labels[:, CANARY] = [self.worlds.labels[world] for world in worlds]
        data = TrainingData.of(dataset, dtype=dtype_of(self.game.config), device=self.device, labels=labels)
        canaries = self.canaries((CANARY,) if self.worlds.present[replicas[0] % 2] else ())
        recorder = self.recorder()
        run, saturated = self.trained(data, canaries, twins or recorder, rows, twins)
        arrays = twins.scores() if twins else self._scored(recorder.view, run)
        if canaries:
            arrays["saturated"] = np.full(len(replicas), saturated)
        return arrays

    def recorder(self) -> ViewRecorder:
        """Return what records the scalars that the adversary sees."""
        game = self.game
        if game.config.all_at_once:
            # One scalar a round for all, whoever sees it; what the adversary knows of ids, the score goes by.
            looks = Adversary("client", (1,))
        else:
            everyone = tuple(range(1, self.dataset.clients + 1))
            name = "eavesdropper" if game.adversary == "release" else game.adversary
            looks = Adversary(name, (1,) if name == "client" else everyone)
        return ViewRecorder(looks, kinds=("scalar",))

    def trained(
        self,
        data: TrainingData,
        canaries: "Mapping[int, CanaryClient]",
        observer: Observer,
        replicas: Sequence[int] = (0,),
        noised: "Twins | None" = None,
    ) -> tuple[Run, bool]:
        """Train on `data` beside aimed canaries; also return whether each still saturated the clip after every pass.

        Raises `InputError` unless each saturates it at the start, on both sides. A canary that does not would make the
        audit blind without a word: a top model so small that all its hidden units are dead at the start has no
        embedding to send.
        """
        config = self.game.config
        context = RunContext(
            seed=self.seed,
            replicas=replicas,
            behaviours=canaries,
            observers=(observer,),
            device=self.device,
            plan=self.plan,
            noised=noised,
        )
        run = self.game.method.start(data, config, context)
        fed = federation_of(run)
        needed = saturating_difference(config)
        for number, canary in canaries.items():
            candidates = _candidates(fed, config, number, self.seed)
            canary.aim(candidates, loss_differences(fed, number, candidates), fed.data.labels)
        reached = min((float(canary.reach.min()) for canary in canaries.values()), default=needed)
        if not reached >= needed:
            raise InputError(
                f"the worst-case canary makes a loss difference of {reached:.3g} where the clip saturates at "
                f"{needed:.3g}; use more hidden units or a smaller clip or smoothing"
            )
        if noised is None and self._rounds_alike(run, canaries):
            self._play_alike(run, canaries)
            # The server never moves: what saturates it once does so in every round.
            return run, all(canary.saturates(fed, m, config) for m, canary in canaries.items())
        saturated = True
        for done in range(1, len(self.plan.active) + 1):
            run.step()
            if done % fed.steps_per_pass == 0:
                saturated = saturated and all(c.saturates(fed, m, config) for m, c in canaries.items())
        return run, saturated

    def _rounds_alike(self, run: Run, canaries: "Mapping[int, CanaryClient]") -> bool:
        """Return whether a client's rounds with the canary are all the same but for noise, and those without it too.

        DPZV's own server then only sums, so that nothing moves, and clients send zeros for other records.
        """
        config = self.game.config
        still = type(run) is DPZVRun and run.federation.server_parameters.flat.shape[1] == 0
        aimed = self.game.canary == "worst-case" and self.game.others == "zero"
        counts = config.participation_cap is None and not config.distinct_ids and config.sampler != "poisson"
        return still and aimed and counts and not any(canary.several for canary in canaries.values())

    def _play_alike(self, run: Run, canaries: "Mapping[int, CanaryClient]") -> None:
        """Train where rounds are alike: the loss difference of the canary is computed once a client, by the run itself.

        Batches, noise and messages are those of the rounds themselves. A client that nobody looks at draws no batch.
        """
        assert isinstance(run, DPZVRun)
        fed = run.federation
        differences = {number: self._difference(run, canary, number) for number, canary in canaries.items()}
        seen = self.recorder().view.adversary.clients
        nothing = torch.zeros(fed.stack, 1, dtype=fed.dtype, device=fed.device)
        for number in self.plan.active:
            if number in seen:
                client = fed.clients[number - 1]
                own_round = client.rounds
                batch = client.next_batch(canaries[number].first_pass_repeats, fed.steps_per_pass)
                held = (batch.ids == CANARY).any(1, keepdim=True)
                scalar = run.noised(differences[number] * held, None)
                run.send_down(Turn((number,), (), own_round, batch, {}), "scalar", {number: scalar})
            else:
                run.noised(nothing.clone(), None)
            run.round += 1

    def _difference(self, run: DPZVRun, canary: "CanaryClient", number: int) -> Tensor:
        """Return the loss difference (K, 1) of the canary in a round of a client; those of other records are 0."""
        fed = run.federation
        ids = torch.arange(fed.config.batch_size, device=fed.device).repeat(fed.stack, 1)
        first = torch.arange(fed.stack, device=fed.device).unsqueeze(1) * fed.records
        batch = Batch(ids, (ids + first).flatten())
        shape = (fed.stack, 2, fed.config.batch_size, fed.width)
        pair = canary.uploads(ClientTurn(0, number, 0, batch, shape, fed.dtype, fed.device))
        differences = run.differences(batch, {number: pair})[1]
        assert not differences[:, 1:].any()
        return differences[:, :1]

    def _scored(self, view: View, run: Run) -> Arrays:
        game = self.game
        if self.kind == "membership":
            return {"scores": self._membership(run)}
        scalars = view.scalars().double().cpu().numpy()
        if self.kind == "mixture":
            return {"scores": self._mixture(scalars)}
        ids = view.batches() if game.knows_ids else None
        held = None if ids is None else (ids == CANARY).any(2).cpu().numpy()
        if self.kind == "fitted":
            features = {"features": summaries(scalars, held, skip_held=game.canary == "state")}
            return features if held is None else {**features, "counts": held.sum(0)}
        assert ids is not None
        assert held is not None
        unit = game.unit if game.others == "saturated" else 0.0
        others = ((ids >= 0).sum(2).cpu().numpy() - 1) * unit
        counted = held * self._cap_weights(held)
        return {"scores": known_ids_score(scalars, counted, others), "counts": (counted > 0).sum(0)}

    def _cap_weights(self, held: np.ndarray) -> np.ndarray:
        """Return how much each round with the canary counts, (T, n): beyond a cap on participations not at all."""
        cap = self.game.config.participation_cap
        if cap is None:
            return np.ones(held.shape)
        before = np.minimum(np.cumsum(held, 0) - held, cap)
        if self.sees_all:
            return np.asarray(before < cap, dtype=np.float64)
        weights = cap_weights(self.sampling, 1, cap)
        return np.asarray(weights[np.arange(len(held))[:, None], before])

    def _mixture(self, scalars: np.ndarray) -> np.ndarray:
        """Return scores of one who does not know the batches: `mixture_score` about what all batches add in common."""
        game = self.game
        shift = game.unit if game.others == "saturated" else 0.0
        mean_out, mean_in = (mean - shift for mean in game.means)
        common = game.config.batch_size * shift
        return mixture_score(scalars - common, self.sampling, sigma=self.plan.sigma, mean_in=mean_in, mean_out=mean_out)

    def _membership(self, run: Run) -> np.ndarray:
        """Return the loss of the canary under the final model with its label of "out" less that with its label of "in".

        Where the record itself is added or replaced, its loss with its label of "in".
        """
        fed = federation_of(run)
        inside = self.worlds.data[1].train
        rows = [torch.from_numpy(block[[CANARY]]).to(self.device) for block in inside.features]
        typed = [row.to(fed.dtype) if row.dtype.is_floating_point else row for row in rows]
        embedded = [fed.embed_all(client, row) for client, row in zip(fed.clients, typed, strict=True)]
        logits: Tensor = fed.server.forward(fed.server_parameters, torch.cat(embedded, 2))[:, 0]
        losses = -torch.log_softmax(logits.double(), 1)
        own = losses[:, int(inside.labels[CANARY])]
        difference = losses[:, self.worlds.labels[0]] - own if self.worlds.label_alone else -own
        return difference.nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30).cpu().numpy()


def _alike(arrays: Arrays, count: int | None) -> bool:
    """Return whether all runs with `count` participations (None: all runs), of both worlds, have one information."""
    sides = [
        side if count is None else side[counts == count]
        for side, counts in zip(side_pair(arrays, "information"), side_pair(arrays, "counts"), strict=True)
    ]
    information = np.concatenate(sides)
    # Where a world has no such run there is too little to tell by.
    return all(side.size for side in sides) and float(np.ptp(information)) <= _SAME * float(information.max())


class Twins:
    """Two rows a training, one for each hypothesis; releases the real one's noised scalar to both, and scores it."""

    def __init__(self, trials: RealTrials, replicas: Sequence[int]) -> None:
        self.rows = [k for k in replicas for _ in (0, 1)]
        self.worlds = [hypothesis for _ in replicas for hypothesis in (0, 1)]
        self._game = trials.game
        real = [2 * place + replica % 2 for place, replica in enumerate(replicas)]
        self._real = torch.tensor(real, device=trials.device)
        context = RunContext(seed=trials.seed, replicas=replicas, device=trials.device)
        self._noise = NoisedScalars(trials.game.config, trials.plan.sigma, context).noise
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
        if self._game.config.all_at_once and message.receiver != 1:
            return  # the same scalar, to another part of the model
        if message.sender == SERVER and message.kind == "scalar" and message.ids is not None:
            self._held.append((message.ids[::2] == CANARY).any(1))

    def on_note(self, party: int, round_: int, name: str, value: object) -> None:
        """Ignore notes."""

    def scores(self) -> Arrays:
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


RANDOM_CANDIDATES = 64
CANDIDATE_SCALES = (1.0, 0.3, 0.1, 0.03)
"""Embeddings tried as the canary's: directions a client, and norms in units of `strength`."""

CANARY_STRENGTH = 10.0
"""Norm of the canary's embeddings in units of the loss difference that saturates the clip, and at least this."""


def saturating_difference(config: ScalarConfig) -> float:
    """Return the loss difference at which the clip saturates: C * 2 lambda (C * lambda as eq. 7 is printed)."""
    return config.clip * config.smoothing * (2.0 if config.difference == "central" else 1.0)


def strength(config: ScalarConfig) -> float:
    """Return the norm of the canary's embeddings: its loss difference is of that order, far above what saturates."""
    return CANARY_STRENGTH * max(1.0, saturating_difference(config))


class CanaryClient:
    """Sends the canaries' saturating embeddings, and for every other record embeddings that contribute 0 or +C.

    `records` are the canaries, none where the record is absent from this world. Labels 0 and 1 tell the worlds apart.
    """

    def __init__(self, records: tuple[int, ...], others: Others = "zero", first_pass_repeats: int = 1) -> None:
        self.first_pass_repeats = first_pass_repeats
        self._records = torch.tensor(records, dtype=torch.int64)
        self._others = others

    @property
    def several(self) -> bool:
        """Return whether there is more than one canary."""
        return len(self._records) > 1

    def aim(self, candidates: Tensor, differences: Tensor, labels: Tensor) -> None:
        """Choose what to send, with knowledge of the server's start and of the other records: a worst-case record.

        Args:
            candidates: (K, n, width) embeddings v to choose from; v goes out as h+ and -v as h-.
            differences: (K, n, classes) loss at h+ less loss at h- under every label.
            labels: Labels (K, N) of all records.
        """
        self.reach, best = _reach(differences).max(1)
        self.embedding = candidates[torch.arange(len(best), device=best.device), best]
        # For every class the candidate under which its own loss difference is largest: it contributes +C.
        most = differences.argmax(1)
        self._own_label = candidates.gather(1, most.unsqueeze(2).expand(-1, -1, candidates.shape[2]))
        self._all_labels = labels
        self._records = self._records.to(candidates.device)

    def uploads(self, turn: ClientTurn) -> Tensor:
        """Return embeddings (K, 2, B, width), see `mechanisms.core.context.ClientBehaviour.uploads`."""
        ids = turn.batch.ids
        pair = torch.zeros(turn.shape, dtype=turn.dtype, device=turn.device)
        if self._others == "saturated":
            own = self._all_labels.gather(1, ids).unsqueeze(2)
            pair[:, 0] = self._own_label.gather(1, own.expand(*ids.shape, turn.shape[-1]))
        # To compare with one record takes a tenth of the time of a search.
        canary = ids == self._records if len(self._records) == 1 else torch.isin(ids, self._records)
        replicas, places = canary.nonzero(as_tuple=True)
        pair[replicas, 0, places] = self.embedding[replicas]
        torch.neg(pair[:, 0], out=pair[:, 1])
        return pair

    def saturates(self, fed: Federation, number: int, config: ScalarConfig) -> bool:
        """Return whether what this client sends for the canary still saturates the clip at the server's parameters."""
        reach = _reach(loss_differences(fed, number, self.embedding.unsqueeze(1)))
        return bool((reach >= saturating_difference(config)).all())


def _reach(differences: Tensor) -> Tensor:
    """Return the smaller of the loss differences with both labels, in the direction of each."""
    return torch.minimum(-differences[..., 0], differences[..., 1])


def logit_directions(server: Evaluator, parameters: ParameterStack, *, rows: Tensor, classes: int) -> Tensor:
    """Return the gradient (K, classes, M * width) of every logit at one row of embeddings, `rows` (K, 1, M * width)."""
    logits, pullback = server.vjp(parameters, rows)
    directions = []
    for label in range(classes):
        unit = torch.zeros_like(logits)
        unit[:, 0, label] = 1.0
        directions.append(pullback(unit)[1][:, 0])
    return torch.stack(directions, 1)


def _candidates(fed: Federation, config: ScalarConfig, number: int, seed: int) -> Tensor:
    """Return embeddings (K, n, width) of a client that may saturate: along the logits' gradients, and random ones."""
    centre = torch.zeros(fed.stack, 1, len(fed.clients) * fed.width, dtype=fed.dtype, device=fed.device)
    gradients = logit_directions(fed.server, fed.server_parameters, rows=centre, classes=fed.data.classes)
    rising = gradients[..., fed.slots[number - 1]]
    toward_low = (rising[:, 0] - rising[:, 1]).unsqueeze(1)
    shape = (RANDOM_CANDIDATES, fed.width)
    draws = [stream(seed, Purpose.CANARY, number, k).standard_normal(shape) for k in fed.replicas]
    random = torch.from_numpy(np.stack(draws)).to(device=fed.device, dtype=fed.dtype)
    candidates = torch.cat((toward_low, -rising, random), 1)
    norms: Tensor = torch.linalg.vector_norm(candidates, dim=2, keepdim=True)
    # A dead server has no gradient: such a candidate stays 0 and reaches nothing.
    unit = candidates / norms.clamp(min=torch.finfo(fed.dtype).tiny)
    return torch.cat([strength(config) * scale * unit for scale in CANDIDATE_SCALES], 1)


def loss_differences(fed: Federation, number: int, candidates: Tensor) -> Tensor:
    """Return loss at v less loss at -v, (K, n, classes) by label, where only client `number`'s embedding is not 0."""
    both = torch.cat((candidates, -candidates), 1)
    rows = both.new_zeros(*both.shape[:2], len(fed.clients) * fed.width)
    rows[..., fed.slots[number - 1]] = both
    plus, minus = torch.log_softmax(fed.server.forward(fed.server_parameters, rows), 2).chunk(2, 1)
    return minus - plus


@dataclass(frozen=True)
class CoinScores:
    """Scores (m,) of the canaries, high for label 1, their coins (m,) as booleans, and facts of the training."""

    scores: Floats
    coins: Bools
    rounds_seen: int
    saturated: bool

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """Scores of the canaries with label 1 and with label 0."""
        return self.scores[self.coins], self.scores[~self.coins]


@torch.no_grad()
def play_one_run(trials: RealTrials, canaries: int) -> CoinScores:
    """Train once with `canaries` records of coin-flip labels and score each from the scalars of who knows batch ids.

    Raises:
        InputError: More canaries than records, an adversary without batch ids, or a configuration that does not fit.
    """
    game = trials.game
    dataset = trials.dataset
    count = len(dataset.train)
    if not 2 <= canaries <= count:
        raise InputError(f"use 2 to the {count} training records", "canaries", canaries)
    generator = stream(trials.seed, Purpose.CANARY, 0)
    records = np.sort(generator.choice(count, canaries, replace=False))
    coins = generator.random(canaries) < 0.5
    labels = dataset.train.labels.copy()
    labels[records] = coins
    config = game.config
    recorder = trials.recorder()
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=trials.device, labels=labels[None])
    _, saturated = trials.trained(data, trials.canaries(tuple(records.tolist())), recorder)
    scalars = recorder.view.scalars()[:, 0].double().cpu().numpy()
    held = _held(recorder.view.batches()[:, 0].cpu().numpy(), records)
    if config.participation_cap is not None and trials.sees_all:
        held = held & (np.cumsum(held, 0) <= config.participation_cap)
    scores = coin_scores(scalars, held, unit=config.clip / config.batch_size, sigma=trials.plan.sigma)
    return CoinScores(scores, coins, len(scalars), saturated)


def _held(ids: NDArray[np.int64], records: NDArray[np.int64]) -> Bools:
    """Return which rounds hold each of the records: (T, B) ids -> (T, m)."""
    place = np.searchsorted(records, ids).clip(max=len(records) - 1)
    rounds, columns = np.nonzero(records[place] == ids)
    held = np.zeros((len(ids), len(records)), dtype=bool)
    held[rounds, place[rounds, columns]] = True
    return held


def coin_scores(scalars: Floats, held: Bools, *, unit: float, sigma: float) -> Floats:
    """Best linear guesses (m,) of the coins from scalars (T,), the canaries' rounds (T, m), C/B and the noise."""
    design = unit * held.astype(np.float64)
    covariance = design @ design.T + sigma**2 * np.eye(len(design))
    return design.T @ np.linalg.solve(covariance, scalars)
