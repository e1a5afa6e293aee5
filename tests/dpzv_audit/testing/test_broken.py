"""Broken versions of the outside package of examples/extension: each fails the contract in a line that says why."""

import runpy
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.core.spec import LabelGuesses, Needs
from dpzv_audit.data.vertical import Records
from dpzv_audit.testing import check_attack, check_dataset, check_method
from dpzv_audit.testing.attacks import _arrays, _fitting
from mechanisms import METHODS
from mechanisms.core.channel import SERVER, Message
from mechanisms.methods.dpzo_run import DPZORun

from ...helpers import one_bit
from ...helpers.places import ROOT

EXAMPLE = ROOT / "examples" / "extension"


@pytest.fixture
def package(monkeypatch):
    """The example package, as if it were installed."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield __import__("dpzv_audit_orchard", fromlist=["masked"])
    for name in [name for name in sys.modules if name.startswith("dpzv_audit_orchard")]:
        del sys.modules[name]


@pytest.fixture
def masked(package):
    from dpzv_audit_orchard import masked

    return masked


@pytest.fixture
def largest(package):
    from dpzv_audit_orchard import label_largest

    return label_largest.SPEC


@pytest.fixture
def orchard(package):
    from dpzv_audit_orchard import orchard

    return orchard.SPEC


def few(spec):
    """A setting of few trainings, in which the example's attack applies."""
    return replace(_fitting(spec), trials=8)


def breaks(check, spec, said, **options):
    """Check that `spec` fails in one line that begins with its name and says `said`."""
    with pytest.raises(AssertionError) as caught:
        check(spec, **options)
    line = str(caught.value)
    assert line.startswith(f"{spec.name}: ")
    assert said in line
    assert "\n" not in line


def test_the_example_itself_keeps_the_contract(masked, largest, orchard):
    check_method(masked.SPEC)
    check_method(masked.SPEC, sigma=0.0)
    check_attack(largest)
    check_dataset(orchard, data_dir=EXAMPLE / "data")


def test_the_zeroth_order_example_keeps_the_contract(package):
    from dpzv_audit_orchard import sign_feedback

    check_method(sign_feedback.SPEC)


def test_the_zeroth_order_example_gives_its_known_answer(package):
    tests = runpy.run_path(EXAMPLE / "tests" / "test_sign_feedback.py")
    tests["test_a_client_steps_along_its_direction_by_the_sign_of_the_loss_difference"]()


def test_noise_without_a_release(masked):
    breaks(check_method, replace(masked.SPEC, released=lambda config, deployment: ()), "and states no release")


def test_a_release_without_noise(masked):
    class Clear(masked.MaskedRun):
        def _masked(self, parts):
            return parts

    breaks(check_method, replace(masked.SPEC, run=Clear), "states a release and draws no noise from its origin")


def test_noise_that_the_seed_betrays(masked):
    class Seeded(masked.MaskedRun):
        def __init__(self, data, config, context):
            super().__init__(data, config, replace(context, origin=None))

    breaks(check_method, replace(masked.SPEC, run=Seeded), "draws no noise from its origin")


def test_noise_that_is_not_released_comes_from_its_origin_too():
    check_method(one_bit.SPEC)
    said = "says that noise protects something and draws no noise from its origin"
    breaks(check_method, one_bit.SEEDED, said)


def test_batches_that_the_seed_betrays():
    class Seeded(DPZORun):
        def __init__(self, data, config, context):
            super().__init__(data, config, replace(context, sampling=None))

    said = "whose bound counts on secret batches: must draw them by what `context.streams` gives"
    breaks(check_method, replace(METHODS["dp-zo"], run=Seeded), said, sigma=0.3)


def test_a_release_whose_sigma_is_not_what_the_run_draws(masked):
    def released(config, deployment):
        return tuple(replace(one, sigma=1.5 * one.sigma) for one in masked.released(config, deployment))

    breaks(check_method, replace(masked.SPEC, released=released), "the release states sigma = 3")


def test_a_message_that_bypasses_the_channel(masked):
    class Whispers(masked.MaskedRun):
        def step(self):
            fed, number = self.federation, next(self._active)
            client = fed.clients[number - 1]
            batch = client.next_batch(1, fed.steps_per_pass)
            output, pullback = client.evaluator.vjp(client.parameters, fed.inputs(client, batch))
            rows = fed.refresh(number, batch, fed.upload(number, self.round, batch, output))
            server_gradient, at_rows = fed.server_gradients(fed.server_batch(rows, batch))
            fed.step_server(server_gradient)
            part = at_rows[:, :, fed.slots[number - 1]]
            fed.channel.send(Message(self.round, SERVER, number, "gradient", self._masked(part), batch.members))
            client_gradient, _ = pullback(part.contiguous(), at_inputs=False)  # not what was sent
            fed.step_client(number, client_gradient)
            self.round += 1

    breaks(check_method, replace(masked.SPEC, run=Whispers), "labels reach a client otherwise than by a message")


def test_a_run_that_is_another_one_for_the_same_seed(masked):
    class Random(masked.MaskedRun):
        def _masked(self, parts):
            return super()._masked(parts) + 1e-3 * torch.randn_like(parts)

    breaks(check_method, replace(masked.SPEC, run=Random), "two runs of one seed differ")


def test_replicas_that_reach_each_other(masked):
    class Mixed(masked.MaskedRun):
        def _masked(self, parts):
            return super()._masked(parts) + 0.1 * parts.mean(0, keepdim=True)

    breaks(check_method, replace(masked.SPEC, run=Mixed), "in a stack of 3 and alone differ by")


def test_a_run_that_forgets_where_it_was(masked):
    class Forgets(masked.MaskedRun):
        def skip_to(self, rounds):
            self.round = rounds

    breaks(check_method, replace(masked.SPEC, run=Forgets), "own_tensors or skip_to leaves state out")


def test_a_method_that_answers_with_something_else(masked):
    said = "the server sends ['gradient'], downlink says 'scalar'"
    breaks(check_method, replace(masked.SPEC, downlink="scalar"), said)


def test_an_attack_that_reads_the_truth(largest):
    seen = {}

    def need(setting):
        seen["labels"] = torch.from_numpy(setting.dataset.train.labels)

    def infer(view, known):
        found = largest.infer(view, known)
        return LabelGuesses(seen["labels"][found.ids], found.ids)

    cheat = replace(largest, needs=Needs(conditions=(need,)), infer=infer)
    breaks(check_attack, cheat, "it reads what its adversary may not know", setting=few(largest))


def test_scores_in_any_layout_of_memory_are_read():
    flipped, fixed = np.arange(6.0).reshape(2, 3)[:, ::-1], np.broadcast_to(np.arange(3.0), (2, 3))
    for scores in (flipped, fixed):
        assert np.array_equal(_arrays(scores)["scores"], scores)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda found: replace(found, scores=found.scores.mean(3)), "scores have shape ("),
        (lambda found: replace(found, labels=found.labels[0]), "must be int64 (answers, K = "),
        (lambda found: replace(found, labels=found.labels + 10), "labels must lie in 0 .. 9"),
        (lambda found: replace(found, ids=found.ids[:1]), "ids have shape"),
        (lambda found: found.labels, "which no mount function scores"),
        (lambda found: replace(found, labels=0 * found.labels), "it misses a leak that is planted for it"),
        (
            lambda found: replace(found, scores=found.scores + torch.rand(1)),
            "draw from dpzv_audit.base.seeds.stream",
        ),
    ],
    ids=["a mean", "one trial", "no class", "few ids", "labels alone", "a guess", "a draw from nowhere"],
)
def test_an_attack_with_wrong_answers(largest, broken, said):
    def infer(view, known):
        return broken(largest.infer(view, known))

    breaks(check_attack, replace(largest, infer=infer), said, setting=few(largest))


def test_an_attack_that_writes_on_its_view(largest):
    def infer(view, known):
        found = largest.infer(view, known)
        view.messages[0].payload.add_(1.0)
        return found

    breaks(check_attack, replace(largest, infer=infer), "infer changes the messages of its view", setting=few(largest))


def test_a_data_set_that_is_another_one_each_time(orchard):
    def read(request):
        data = orchard.reader(request)
        data.train.features[0][:] += np.random.default_rng().standard_normal(data.train.features[0].shape)
        return data

    breaks(check_dataset, replace(orchard, reader=read), "two loads differ", data_dir=EXAMPLE / "data")


def test_a_data_set_that_says_other_partitions_than_it_makes(orchard):
    way = replace(orchard.partitions["columns"], clients=2, divides=None)

    def read(request):
        return orchard.reader(replace(request, clients=3))

    spec = replace(orchard, reader=read, partitions={"columns": way})
    breaks(check_dataset, spec, "columns makes 3 clients, says 2", data_dir=EXAMPLE / "data")


@pytest.mark.parametrize("moved", [lambda ids: ids[::-1], lambda ids: np.tile(ids, 2)])
def test_a_partition_that_moves_labels(orchard, moved):
    """Records may become several, as a ring of views that is turned does, but never in another order."""

    def read(request):
        data = orchard.reader(replace(request, partition="columns"))
        if request.partition == "columns":
            return data
        order = moved(np.arange(len(data.train.labels)))
        part = Records(tuple(block[order] for block in data.train.features), data.train.labels[order])
        return replace(data, train=part)

    spec = replace(orchard, reader=read, partitions={**orchard.partitions, "moved": orchard.partitions["columns"]})
    breaks(check_dataset, spec, "moved changes labels or their order", data_dir=EXAMPLE / "data")


def test_a_data_set_that_takes_any_option(orchard):
    def read(request, *, no_such_option=0):
        return orchard.reader(request)

    spec = replace(orchard, reader=read)
    breaks(check_dataset, spec, "an unknown option must raise InputError, is taken", data_dir=EXAMPLE / "data")
