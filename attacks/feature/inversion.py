"""A server that reconstructs a client's features from the embeddings that the client sends up.

The server fits a decoder on a few records whose features it knows (`decoders`), and decodes all others with it. It
reads all uploads of a record (`uploads`). `quality` marks what it finds.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.findings import Control, Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory
from dpzv_audit.data.vertical import VerticalDataset, take
from mechanisms.core.channel import View
from mechanisms.core.context import TrainedStack, TrainingData, dtype_of
from mechanisms.core.federation import architectures_of
from mechanisms.core.models import dimension
from mechanisms.core.replicas import evaluator_for

from ..core import needs
from ..core.controls import at_chance, by_pairing
from ..core.knowledge import ClientModels, Knowledge, ServerLabels, SomeFeatures
from ..core.metrics import Floats, Ints, over_trainings, t_interval
from ..core.run import AttackedRun, attacked_run
from ..core.setting import AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, DoesNotApply, Goal, Needs, Option, Pictures, Positive, Setup
from .decoders import Decoder, best_decoder
from .enumeration import candidates, enumerated, too_many
from .mount import (
    PAIRED,
    RAW,
    RECORDED,
    UNTRAINED,
    memory_of_messages,
    reach_of,
    recorded_control,
    stand_ins,
)
from .quality import GROUPS, PSNR, SSIM, Truth
from .uploads import READ, UploadWatch, open_targets, sent_embeddings, target_of


def infer(view: View, known: Knowledge) -> "Reconstruction":
    """Decode every record of a client whose features are unknown, from the embeddings that it sent."""
    some = known.granted(SomeFeatures)
    features = some.features.flatten(1).double().cpu().numpy()
    ids = some.ids.cpu().numpy()
    free = np.setdiff1d(np.arange(known.records), ids)

    def decoded(k: int) -> Decoded:
        inputs = sent_embeddings(view, known, k, some.client)
        rows_of_known = {read: rows[ids] for read, rows in inputs.items()}
        best = best_decoder(rows_of_known, features, seed=k, trained=not known.pilot)
        rows = inputs[best.inputs][free]
        if known.options["knows_model"]:
            guess = enumerated(view, known, k)
            if ((guess[ids] - features) ** 2).sum(1).mean() <= best.error:
                return Decoded(replace(best, name="enumeration", inputs="last"), torch.from_numpy(guess[free]), rows)
        return Decoded.by(best, rows)

    return Reconstruction(torch.from_numpy(free), len(known.replicas), decoded)


def from_others(run: AttackedRun) -> "Reconstruction":
    """Decode the same records from the other clients' mean embeddings and the label: without the client's own."""
    some = run.known.granted(SomeFeatures)
    features = some.features.flatten(1).double().cpu().numpy()
    ids = some.ids.cpu().numpy()
    free = np.setdiff1d(np.arange(run.known.records), ids)
    label = run.known.label_columns(run.known.granted(ServerLabels).labels)
    by_training = [rows for watched in run.watched for rows in zip(*watched.means.values(), strict=True)]

    def decoded(k: int) -> Decoded:
        rows = np.concatenate([*(mean.double().cpu().numpy() for mean in by_training[k]), label], 1)
        best = best_decoder({"mean": rows[ids]}, features, seed=k, trained=False)
        return Decoded.by(best, rows[free])

    return Reconstruction(torch.from_numpy(free), len(by_training), decoded)


def mount_features(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, reconstruct, and compare; the control permutes the client's records before training."""
    check_memory(memory_needed(setting), f"{spec.name} over {setting.trials} trainings")
    run = trained_under(spec, setting)
    dataset = own_block(setting)
    train = setting.dataset.train
    client = target_of(setting)
    confidence = setting.confidence
    scored = score(dataset, spec.infer(run.view, run.known), confidence)
    baselines: dict[str, float | Interval] = {MEAN: 0.0}
    compared = {RECONSTRUCTED: scored, MEAN: score(dataset, mean_record(dataset, scored.ids), confidence)}
    if run.watched[0].means:
        compared[OTHERS] = score(dataset, from_others(run), confidence)
        baselines[OTHERS] = compared[OTHERS].success
    outcome = AttackOutcome(
        success=scored.success,
        baselines=baselines,
        controls={},
        trained=run.trained,
        plan=run.plan,
        metric="correlation of reconstructed with true features, about the mean record",
        measures=scored.quality,
        curves=_tables(dataset, compared),
        pictures=beside(dataset, compared),
        by_trial={"success": tuple(scored.shares.mean(1).clip(-1.0, 1.0).tolist())},
        at_once=run.at_once,
    )
    if setting.pilot:
        return outcome
    measures = {
        **scored.quality,
        **references(setting, run.known, run.trained),
        CHANCE: by_chance(dataset, scored, run.known),
    }
    if not setting.method.capabilities.repeatable:
        return replace(
            outcome, measures=measures, controls={"permuted_records": permuted(spec, setting, scored)}, no_game=RECORDED
        )
    again_at_once = run.at_once
    del run  # the messages of the control's trainings take as much memory again
    # An order of its own for each method: controls of several methods that shared one would share its luck.
    own = crc32(setting.method.name.encode())
    order = stream(setting.seed, Purpose.CONTROL, 0, own).permutation(len(train))
    blocks: list[Any] = list(train.features)
    blocks[client - 1] = np.ascontiguousarray(blocks[client - 1][order])
    moved = replace(setting.dataset, train=replace(train, features=tuple(blocks)))
    again = trained_under(spec, replace(setting.of_control(again_at_once), dataset=moved))
    against = score(dataset, spec.infer(again.view, again.known), confidence, marked=False)
    truth = Truth.of(dataset, against.ids[: len(against.directions)]).real
    control = at_chance(
        against.success,
        what="trained on the client's records in another order, compared with the true ones: must be 0",
        expected=0.0,
        test=by_pairing(against.directions, truth, stream(setting.seed, Purpose.CONTROL, 1, own)),
    )
    return replace(outcome, measures=measures, controls={"other_records": control}, at_once=again.at_once)


def permuted(spec: AttackSpec, setting: AttackSetting, scored: "Scored") -> Control:
    """Return the control of one recorded training: its guesses, held against the client's records in another order."""
    truth = Truth.of(own_block(setting), scored.ids)
    real = truth.real - truth.mean
    about = scored.first.features.numpy() - truth.mean
    norms = max(float(np.linalg.norm(about) * np.linalg.norm(real)), 1e-300)
    paired = len(scored.directions)
    return recorded_control(
        spec,
        setting,
        by_pairing(scored.directions, real[:paired], stream(setting.seed, Purpose.CONTROL, 1)),
        len(real),
        lambda order: float((about * real[order]).sum() / norms),
    )


def trained_under(spec: AttackSpec, setting: AttackSetting) -> AttackedRun:
    """Train under attack, and grant a server that `knows_model` the client's model at every upload."""
    run = attacked_run(spec, setting, watch=UploadWatch)
    if not spec.own_options(setting)["knows_model"]:
        return run
    if not all(watched.models for watched in run.watched):
        raise DoesNotApply("knows_model needs embeddings of a client's model, and this method sends none; leave it out")
    known = run.known.granted(SomeFeatures).features
    model = architectures_of(setting.data(), setting.config)[0][target_of(setting) - 1]
    models = ClientModels(
        evaluator_for(model, stack=1, device=setting.device),
        tuple(tuple(watched.models) for watched in run.watched),
        torch.from_numpy(candidates(setting)).to(known).view(-1, *known.shape[1:]),
    )
    return replace(run, known=replace(run.known, grants=(*run.known.grants, models)))


def references(setting: AttackSetting, known: Knowledge, trained: TrainedStack) -> dict[str, Interval]:
    """Return the success on embeddings of the first training's client before training, and on its raw features.

    Both are in the clear. The first tells what training adds, and is left out where it moves no client's model; the
    second tells how far the decoders themselves reach. Of a system, whose model before training is its own, that alone.
    """
    raw, start = stand_ins(setting, trained, target_of(setting))
    dataset = own_block(setting)
    found = {}
    some = known.granted(SomeFeatures)
    free = np.setdiff1d(np.arange(known.records), some.ids.cpu())
    features = some.features.flatten(1).double().cpu().numpy()
    for name, rows in {RAW: raw, UNTRAINED: start}.items():
        if rows is None:
            continue
        best = best_decoder({name: rows[some.ids.cpu()]}, features, seed=0, trained=False)
        decoded = Decoded.by(best, rows[free])
        found[name] = score(dataset, Reconstruction.of(free, decoded), setting.confidence, marked=False).success
    return found


def own_block(setting: AttackSetting) -> VerticalDataset:
    """Return the data set with the attacked client's block alone, which reconstructions are compared with."""
    place = target_of(setting) - 1
    data = setting.dataset
    train, test = (replace(part, features=(part.features[place],)) for part in (data.train, data.test))
    return replace(data, train=train, test=test, vocabulary=None, variables=())


def mean_record(dataset: VerticalDataset, ids: Ints) -> "Reconstruction":
    """Return the mean record in place of each of the records `ids` (n,)."""
    block = dataset.train.features[0]
    mean = block.reshape(len(block), -1).mean(0, dtype=np.float64)
    nothing = Decoder(MEAN, "no", lambda rows: np.tile(mean, (len(rows), 1)))
    return Reconstruction.of(ids, Decoded.by(nothing, np.zeros((len(ids), 0))))


def by_chance(dataset: VerticalDataset, scored: "Scored", known: Knowledge) -> Interval:
    """Return the mean, least and largest success of the first training's decoder on known features in other orders.

    One such fit may reach far: rare columns and clusters of records make chance wide.
    """
    features = known.granted(SomeFeatures).features.flatten(1).double().cpu().numpy()
    truth = dataset.train.features[0].reshape(len(dataset.train), -1)
    real, mean = truth[scored.ids[:PAIRED]], truth.mean(0)
    generator = stream(known.seed, Purpose.CONTROL, 2)
    refit = scored.first.decoder.refit
    found = []
    for _ in range(int(known.options["permutations"])):
        guess = refit(features[generator.permutation(len(features))])(scored.first.inputs[:PAIRED])
        found.append(float(_shares(torch.from_numpy(guess - mean), torch.from_numpy(real - mean)).mean()))
    return reach_of(found)


def memory_needed(setting: AttackSetting) -> int:
    """Return about how many bytes the clients' messages of all trainings take, with the decoding of one training."""
    needed = memory_of_messages(setting, target_of(setting))
    if option_of(setting, "knows_model"):
        own = architectures_of(setting.data(), setting.config)[0][target_of(setting) - 1]
        models = (setting.rounds + 1) * dimension(evaluator_for(own, stack=1).layout)
        needed += torch.finfo(dtype_of(setting.config)).bits // 8 * setting.trials * models
    return needed


def option_of(setting: AttackSetting, name: str) -> Option:
    """Return an option of this attack, which others that mount it have beside options of their own."""
    option: Option = setting.options.get(name, SPEC.setup.options[name])
    return option


def some_features(data: TrainingData, setting: AttackSetting) -> tuple[SomeFeatures, ServerLabels]:
    """Grant the features of `known_records` records of a client, drawn by the seed: at most half of them all.

    And the labels, which the server owns.
    """
    order = stream(setting.seed, Purpose.ATTACK, 7).permutation(data.records)
    ids = np.sort(order[: min(int(option_of(setting, "known_records")), data.records // 2)])
    chosen = torch.from_numpy(ids).to(setting.device)
    client = target_of(setting)
    return SomeFeatures(client, chosen, data.features[client - 1][chosen]), ServerLabels(setting.labels)


def features_to_fit(setting: AttackSetting) -> str | None:
    """Need features to compare, and records to fit a decoder on."""
    client = target_of(setting)
    if setting.dataset.train.features[client - 1].dtype != np.float32:
        return f"client {client} holds token ids, no features to compare"
    records = setting.records
    known = min(int(option_of(setting, "known_records")), records // 2)
    if known < 2:
        return f"of {records} training records the server knows {known}; use 2 at least to fit a decoder"
    if not option_of(setting, "knows_model"):
        return None
    if not setting.method.capabilities.simulated:
        return "knows_model needs the client's model at each upload, which a system does not give; leave it out"
    return too_many(setting)


def wide(setting: AttackSetting) -> AttackSetting:
    """Split learning whose embeddings are four times as wide as the features, in the clear."""
    d = int(np.prod(setting.dataset.shapes[0]))
    # Enough records to fit so wide a decoder, and no more of others than tell how well it does.
    known = max(200, 16 * d)
    some = take(setting.dataset.train, np.arange(min(len(setting.dataset.train), max(4_000, 4 * known))))
    return setting.on(
        "split",
        {"epochs": 1, "embedding": 4 * d},
        trials=2,
        options={"known_records": known},
        pilot=True,
        dataset=replace(setting.dataset, train=some),
    )


SPEC = AttackSpec(
    name="feature_inversion",
    summary="a client's features by the server: the best of three decoders, fitted on a few known records",
    adversaries=("server",),
    infer=infer,
    mounted_by=mount_features,
    goal=Goal(
        Positive("embeddings four times as wide as the features: must be 0.4 at least", wide, 0.4),
        least_success=-1.0,
        reveals="features",
    ),
    needs=Needs(
        conditions=(needs.uploads_of(target_of), features_to_fit, needs.one_batch_size),
        one_view=True,
        reads=("table", "embeddings"),
        reads_of=lambda setting: (target_of(setting),),
        numbers=True,
    ),
    setup=Setup(
        options={"target": 1, "known_records": 200, "embeddings": "auto", "knows_model": False, "permutations": 40},
        choices={"embeddings": tuple(READ)},
        trials=8,
        targets=open_targets,
        grants=some_features,
    ),
)


@dataclass(frozen=True)
class Decoded:
    """Features (n, d) of one training, by which decoder, and of which inputs (n, w)."""

    decoder: Decoder
    features: Tensor
    inputs: Floats

    @classmethod
    def by(cls, decoder: Decoder, inputs: Floats) -> "Decoded":
        """Return what a decoder makes of its inputs."""
        return cls(decoder, torch.from_numpy(decoder.predict(inputs)), inputs)


@dataclass(frozen=True)
class Reconstruction:
    """Features of the records `ids` (n,) that the server did not know, in the machine's memory, by training.

    They are decoded when they are asked for: those of all `trials` together would be many.
    """

    ids: Tensor
    trials: int
    decoded: Callable[[int], Decoded]

    @classmethod
    def of(cls, ids: Ints, decoded: Decoded) -> "Reconstruction":
        """Return the features of one training."""
        return cls(torch.from_numpy(ids), 1, lambda k: decoded)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the features (n, d) of each training."""
        return (self.decoded(k).features for k in range(self.trials))


RECONSTRUCTED = "reconstructed"
MEAN = "the mean record"
OTHERS = "from the other clients' embeddings and the label"
CHANCE = "with known features in another order"
# Records in a picture: the first that the server did not know, whatever became of them.
SHOWN = 8


@dataclass(frozen=True)
class Scored:
    """Success of reconstructions of the records `ids` (n,), and each group's share of it in each training (K, groups).

    `quality` has further marks by name; `columns` is the share of variance that is left of each variable. `directions`
    (<= 1,000, d) are the first records' guesses about the mean record, each training's scaled to a norm of 1, averaged.
    `decoders` counts the trainings that each won; `first` is what the first training gave.
    """

    ids: Ints
    success: Interval
    shares: Floats
    quality: Mapping[str, Interval]
    columns: Floats
    directions: Floats
    decoders: Mapping[str, int]
    first: Decoded


def score(
    dataset: VerticalDataset, reconstruction: Reconstruction, confidence: float, *, marked: bool = True
) -> Scored:
    """Compare reconstructions with the true features, one training at a time; `marked` by more than correlation."""
    ids = reconstruction.ids.numpy()
    truth = Truth.of(dataset, ids)
    real = torch.from_numpy(truth.real - truth.mean)
    shares, marks, columns, directions, won = [], [], [], [], Counter[str]()
    first = None
    for k in range(reconstruction.trials):
        decoded = reconstruction.decoded(k)
        first = first or decoded
        features = decoded.features.numpy()
        about = decoded.features - torch.from_numpy(truth.mean)
        shares.append(_shares(about, real))
        if marked:
            marks.append(truth.marks(features))
            columns.append(truth.left(features))
        directions.append((about / torch.linalg.vector_norm(about).clamp(min=1e-300))[:PAIRED].numpy())
        won[f"{decoded.decoder.name}, {decoded.decoder.inputs}"] += 1
    if first is None:
        raise InputError("no training was reconstructed")
    by_training = np.stack(shares)
    names = {name: np.mean([of[name] for of in marks], 0) for name in (marks[0] if marks else ())}
    return Scored(
        ids=ids,
        success=_correlation(by_training, len(ids), confidence),
        shares=by_training,
        quality={name: t_interval(values, len(ids), confidence) for name, values in names.items()},
        columns=np.mean(columns, 0) if marked else np.empty(0),
        directions=np.mean(directions, 0),
        decoders=won,
        first=first,
    )


def _shares(guess: Tensor, real: Tensor) -> Floats:
    """Return each group's share (groups,) of the correlation of `guess` (n, d) with `real`, both about the mean record.

    Their mean is the correlation; a group of unusual records may have more than 1.
    """
    norms = torch.linalg.vector_norm(guess) * torch.linalg.vector_norm(real)
    products = ((guess * real).sum(1) / norms.clamp(min=1e-300)).numpy()
    groups = min(GROUPS, len(products))
    return np.array([part.sum() * groups for part in np.array_split(products, groups)])


def _correlation(shares: Floats, records: int, confidence: float) -> Interval:
    """Return the correlation by `shares` (K, groups), means over trainings, of the groups of so many `records`.

    By records the interval is Student's over groups of records: each group has many.
    """
    by_group = t_interval(shares.mean(0), records, confidence)
    value, low, high = np.clip((by_group.value, by_group.low, by_group.high), -1.0, 1.0).tolist()
    over = over_trainings(shares.mean(1), confidence, least=-1.0)
    return replace(by_group, value=value, low=low, high=high, over_trainings=over)


def _tables(dataset: VerticalDataset, compared: Mapping[str, Scored]) -> dict[str, list[dict[str, Any]]]:
    """Return the marks of reconstructions beside those of baselines, errors by variable, and who decoded."""
    rows = [
        {"what": what, "correlation": one.success.value, **{name: mark.value for name, mark in one.quality.items()}}
        for what, one in compared.items()
    ]
    decoders = [{"decoder": name, "trainings": n} for name, n in compared[RECONSTRUCTED].decoders.items()]
    first = Truth.of(dataset, compared[RECONSTRUCTED].ids)
    found: dict[str, list[dict[str, Any]]] = {
        f"quality of reconstructed {'records' if first.shape is None else 'pictures'}": rows,
        "decoders": decoders,
    }
    if first.variables:
        errors = zip(first.variables, *(one.columns for one in compared.values()), strict=True)
        found["share of each variable that is not explained"] = [
            {
                "columns": f"{variable.start + 1} to {variable.stop}",
                **dict(zip(compared, map(float, values), strict=True)),
            }
            for variable, *values in errors
        ]
    return found


def beside(dataset: VerticalDataset, compared: Mapping[str, Scored]) -> Pictures | None:
    """Return the first records beside their reconstructions and the mean record; None where they are no pictures."""
    truth = Truth.of(dataset, compared[RECONSTRUCTED].ids[:SHOWN])
    if truth.shape is None:
        return None

    def greys(features: Floats) -> Floats:
        planes = truth.planes(features)
        return np.asarray(np.clip(planes.mean(1).reshape(len(planes), -1), 0.0, 1.0))

    rows = {"original": greys(truth.real)}
    for what in (RECONSTRUCTED, MEAN):
        psnr, likeness = (compared[what].quality[name].value for name in (PSNR, SSIM))
        rows[f"{what}: PSNR {psnr:.1f} dB, SSIM {likeness:.2f}"] = greys(compared[what].first.features[:SHOWN].numpy())
    height, width = truth.shape[1:]
    return Pictures((height, width), rows)
