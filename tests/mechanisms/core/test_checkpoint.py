"""A run that was cut off between two epochs ends with the same numbers as one that was not."""

import pytest

from dpzv_audit.base.errors import InputError
from mechanisms import METHODS
from mechanisms.core.channel import StalenessObserver
from mechanisms.core.checkpoints import FileCheckpoints, run_key
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import training_data

SMALL = {"batch_size": 5, "epochs": 4, "embedding": 4, "hidden": 6, "dtype": "float64"}
VARIANTS = [
    # What is over after one round has nothing to resume.
    *((name, {}) for name, spec in METHODS.items() if "epochs" not in spec.config.unused),
    ("dpzv", {"sampler": "poisson", "participation_cap": 3, "activation": "random"}),
    ("zoo-vfl", {"sampler": "poisson", "dp": "embedding", "dp_sigma": 0.1}),
    ("syn-zoo-vfl", {"dp": "embedding-batch", "epsilon": 4.0}),
    ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}),
    ("dpzv", {"server_update": "dp-zo", "server_noise_multiplier": 1.0}),
    ("dpzv-sound", {"directions": 3, "momentum": 0.5}),
    ("vafl", {"dp": "embedding", "dp_sigma": 0.3}),
    ("compressed", {"dp": "gradient", "dp_sigma": 0.3, "local_steps": 2}),
    ("czofo", {"dp": "embedding-batch", "dp_sigma": 0.3, "compute_times": (1.0, 2.5, 4.0)}),
    ("cascaded", {"sampler": "uniform", "momentum": 0.5}),
    ("split", {"defences": {"name": "label-rr", "correction": True}}),
    ("vafl", {"defences": {"name": "label-cluster", "groups": 3, "release": "shares"}}),
]


class CutOff(Exception):
    """Stands for whatever ended a run."""


class StopsAfter:
    """Checkpoints that end the run after so many epochs."""

    def __init__(self, inner, epochs):
        self.inner, self.epochs = inner, epochs

    def load(self, run):
        return self.inner.load(run)

    def save(self, run, history):
        self.inner.save(run, history)
        if len(history) == self.epochs:
            raise CutOff


@pytest.fixture
def data():
    return training_data(records=23)


def numbers(trained):
    parameters = [stack.flat.tolist() for stack in (*trained.clients, trained.server)]
    ledger = (trained.ledger.bytes_up, trained.ledger.bytes_down, trained.ledger.messages)
    history = (trained.history, trained.traffic)
    return parameters, history, ledger, trained.rounds, trained.rounds_by_client, trained.loss.tolist()


def cut_off(data, config, files, epochs, **common):
    """Train until so many epochs are kept, and no further."""
    with pytest.raises(CutOff):
        train(data, config, evaluate_epochs=True, checkpoints=StopsAfter(files, epochs), **common)
    assert files.epochs == epochs


def observer(config):
    return StalenessObserver(23, 3, config.epochs * (23 // config.batch_size))


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_a_resumed_run_ends_with_the_same_numbers(method, options, data, tmp_path):
    config = METHODS[method].configure(**METHODS[method].used(SMALL), **options)
    common = {"seed": 3, "replicas": (0, 4)}
    ages = {"whole": observer(config), "resumed": observer(config)}
    whole = train(data, config, **common, evaluate_epochs=True, observers=(ages["whole"],))
    files = FileCheckpoints(tmp_path, "key", resume=True)
    for epochs in (1, 3):
        cut_off(data, config, files, epochs, **common, observers=(observer(config),))
    resumed = train(data, config, **common, evaluate_epochs=True, observers=(ages["resumed"],), checkpoints=files)
    assert files.resumed_at == 3
    assert ages["resumed"].summary() == ages["whole"].summary()
    assert numbers(resumed) == numbers(whole)


class AsksAgain:
    """Does as the method says, but has each batch of its first pass serve several rounds."""

    def __init__(self, repeats):
        self.first_pass_repeats = repeats

    def uploads(self, turn):
        return None


@pytest.mark.parametrize("method", ["dpzv", "zoo-vfl", "syn-zoo-vfl"])
@pytest.mark.parametrize("repeats", [3, 5])
def test_a_run_resumes_within_a_first_pass_whose_batches_serve_several_rounds(method, repeats, data, tmp_path):
    """At 4 batches a pass a first pass outlasts the first epochs: the cuts lie between the rounds of one batch."""
    config = METHODS[method].configure(**{**SMALL, "epochs": 6})
    common = {"seed": 3, "behaviours": {1: AsksAgain(repeats)}}
    whole = train(data, config, **common, evaluate_epochs=True)
    files = FileCheckpoints(tmp_path, "key", resume=True)
    for epochs in range(1, 6):
        cut_off(data, config, files, epochs, **common)
    resumed = train(data, config, **common, evaluate_epochs=True, checkpoints=files)
    assert files.resumed_at == 5
    assert numbers(resumed) == numbers(whole)


def test_without_resume_a_checkpoint_is_replaced_not_read(data, tmp_path):
    config = DPZVConfig(**SMALL)
    cut_off(data, config, FileCheckpoints(tmp_path, "k", resume=True), 2, seed=0)
    fresh = train(data, config, seed=0, evaluate_epochs=True, checkpoints=FileCheckpoints(tmp_path, "k", resume=False))
    assert [epoch for epoch, _, _ in fresh.history] == [1, 2, 3, 4]
    FileCheckpoints(tmp_path, "k", resume=False).remove()
    assert not tmp_path.exists()


def test_foreign_and_damaged_checkpoints_are_one_line(data, tmp_path):
    config = DPZVConfig(**SMALL)
    cut_off(data, config, FileCheckpoints(tmp_path, "k", resume=True), 1, seed=0)
    content = (tmp_path / "k.safetensors").read_bytes()
    (tmp_path / "other.safetensors").write_bytes(content)
    with refused("belongs to another run"):
        train(data, config, seed=0, checkpoints=FileCheckpoints(tmp_path, "other", resume=True))
    wider = config.model_copy(update={"embedding": 5})
    with refused("belongs to another run"):
        train(data, wider, seed=0, checkpoints=FileCheckpoints(tmp_path, "k", resume=True))
    for damaged, says in (
        (b"", "a header of 0 bytes does not fit the 0 bytes there are"),
        (content[:50], "bytes does not fit the 50 bytes there are"),
        (b"\xff" * 200, "does not fit the 200 bytes"),
        (content[:-9], "file not fully covered"),
        (content[:-1] + bytes([content[-1] ^ 1]), "facts and tensors have digest"),
    ):
        (tmp_path / "k.safetensors").write_bytes(damaged)
        with pytest.raises(InputError) as caught:
            train(data, config, seed=0, checkpoints=FileCheckpoints(tmp_path, "k", resume=True))
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / 'k.safetensors'}: the checkpoint is damaged: ")
        assert says in message
        assert message.endswith("; start without resume, which replaces it")


def test_the_key_follows_from_the_facts():
    assert run_key({"a": 1}) == run_key({"a": 1}) != run_key({"a": 2})
