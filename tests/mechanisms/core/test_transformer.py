"""A pre-trained transformer at three clients of text: a tiny random BERT in a folder stands for any; no network."""

import json
import sys

import numpy as np
import pytest
import torch

from attacks import ATTACKS
from attacks.core.knowledge import OwnParty
from attacks.core.run import attacked_run
from attacks.core.setting import AttackSetting
from dpzv_audit.cli.flags import TrainingFlags
from dpzv_audit.cli.options import DataFlags, choose
from dpzv_audit.data.text import PretrainedTokenizer, read_pretrained
from dpzv_audit.data.vertical import Records, VerticalDataset, equal_runs
from mechanisms import METHODS
from mechanisms.core.context import TrainingData
from mechanisms.core.models import Network, TokenBag, TransformerModel
from mechanisms.core.replicas import ParameterStack, evaluator_for
from mechanisms.core.streams import Streams
from mechanisms.presets import dataset_defaults

from ...helpers.built_in import architectures, module_of, train
from ...helpers.pretended import pretended_cuda
from ...helpers.refusals import refused
from ..conftest import same_models, training_data

WORDS = ["good", "bad", "film", "the", "was", "very", "not", "plot"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LENGTH, CLIENTS = 12, 3
SMALL = {"batch_size": 4, "epochs": 2, "embedding": 4, "hidden": 6, "client_model": "transformer"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        hidden_dropout_prob=0.5,
    )
    transformers.BertModel(config).save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(VOCABULARY))
    tokens = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (path / "tokenizer_config.json").write_text(json.dumps(tokens))
    return str(path)


def texts(count, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=count)
    rows = [" ".join([*generator.choice(WORDS[2:], generator.integers(0, 9)), WORDS[k]]) for k in labels]
    return rows, labels


@pytest.fixture(scope="module")
def dataset(folder):
    tokenizer = PretrainedTokenizer(source=folder, length=LENGTH)
    parts = []
    for count, seed in ((16, 0), (6, 1)):
        rows, labels = texts(count, seed)
        parts.append(Records(equal_runs(tokenizer.encode(rows), CLIENTS), labels))
    return VerticalDataset("texts", *parts, 2, "3 clients, runs", {}, vocabulary=tokenizer.vocabulary)


def test_the_tokenizer_reads_each_text_alone_and_pads(folder):
    tokenizer = PretrainedTokenizer(source=folder, length=4)
    ids = tokenizer.encode(["The film was good", "bad", "", "very very bad bad plot unheard-of"])
    number = {word: place for place, word in enumerate(VOCABULARY)}
    assert ids.dtype == np.int64
    assert tokenizer.vocabulary == len(VOCABULARY)
    expected = [["the", "film", "was", "good"], ["bad"], [], ["very", "very", "bad", "bad"]]
    assert ids.tolist() == [[number[w] for w in row] + [0] * (4 - len(row)) for row in expected]
    assert np.array_equal(tokenizer.encode(["bad"])[0], ids[1])
    assert tokenizer.encode([]).shape == (0, 4)
    assert "13 ids" in tokenizer.name


def test_every_client_starts_at_the_pretrained_encoder_and_a_head_of_its_own(folder, dataset):
    transformers = pytest.importorskip("transformers")
    config = METHODS["vafl"].configure(**{**SMALL, "client_rate": 0.0}, transformer=folder)
    trained = train(training_data(dataset), config, seed=0, replicas=(0, 1))
    encoder = transformers.AutoModel.from_pretrained(folder, use_safetensors=True)
    read = {name: value for name, value in encoder.named_parameters() if not name.startswith("pooler")}
    for stack in trained.clients:
        for name, value in read.items():
            assert all(torch.equal(row.float(), value) for row in stack.views[f"encoder.{name}"])
        assert {name for name, _ in stack.layout} == {f"encoder.{n}" for n in read} | {"head.weight", "head.bias"}
        assert not torch.isclose(stack.views["head.weight"][0], stack.views["head.weight"][1]).any()
    first, second = (stack.views["head.weight"] for stack in trained.clients[:2])
    assert not torch.isclose(first, second).any()


def test_what_an_attack_calls_untrained_is_the_pretrained_start(folder, dataset):
    """At a rate of 0 the trained model is the start: the baseline of label completion must be this one."""
    config = METHODS["vafl"].configure(**{**SMALL, "client_rate": 0.0}, transformer=folder)
    setting = AttackSetting(
        method=METHODS["vafl"], config=config, dataset=dataset, trials=2, options={"labels_per_class": 1}
    )
    run = attacked_run(ATTACKS["label_completion"], setting)
    assert torch.equal(run.known.granted(OwnParty).initial().flat, run.trained.clients[0].flat)


def test_a_stack_is_its_replicas_and_a_record_does_not_depend_on_its_batch(folder):
    model = TransformerModel(folder, 3)
    evaluator = evaluator_for(model, stack=2)
    parameters = ParameterStack.initial(
        evaluator.layout, Streams(seed=0, replicas=(0, 1), dtype=torch.float64), party=1, pretrained=model.pretrained()
    )
    parameters.flat.add_(0.1 * torch.randn(parameters.flat.shape, dtype=torch.float64))
    ids = torch.randint(1, len(VOCABULARY), (2, 5, 4))
    ids[:, 1, 2:] = 0
    ids[:, 2] = 0
    outputs = evaluator.forward(parameters, ids)
    assert outputs.shape == (2, 5, 3)
    assert outputs.isfinite().all()
    for place in range(2):
        module = module_of(model, parameters, place)
        assert not module.training
        with torch.no_grad():
            for record in range(5):
                alone = module(ids[place, record : record + 1])[0]
                assert torch.allclose(outputs[place, record], alone, rtol=0, atol=1e-10)
    # Padding after a text says nothing; a longer run of it changes nothing.
    longer = torch.cat((ids, torch.zeros(2, 5, 2, dtype=torch.int64)), 2)
    assert torch.allclose(evaluator.forward(parameters, longer), outputs, rtol=0, atol=1e-10)


def test_first_order_steps_are_autograds(folder, dataset):
    model = TransformerModel(folder, 3)
    evaluator = evaluator_for(model, stack=1)
    parameters = ParameterStack.initial(
        evaluator.layout, Streams(seed=0, replicas=(0,), dtype=torch.float64), party=1, pretrained=model.pretrained()
    )
    ids = training_data(dataset).features[0][:5].unsqueeze(0)
    outputs, pullback = evaluator.vjp(parameters, ids)
    gradient = torch.randn(outputs.shape, dtype=torch.float64)
    flat, _ = pullback(gradient, at_inputs=False)
    module = module_of(model, parameters, 0)
    (module(ids[0]) * gradient[0]).sum().backward()
    for name, parameter in module.named_parameters():
        want = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        got = ParameterStack(flat, evaluator.layout).views[name][0]
        assert torch.allclose(got, want, rtol=0, atol=1e-10), name


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("split", {}),
        ("vafl", {}),
        ("czofo", {}),
        ("zoo-vfl", {}),
        ("dpzv", {"sigma": 0.0}),
        ("dpzv", {"sigma": 0.0, "perturbation": "in-place", "momentum": 0.0}),
        ("dpzv-sound", {"sigma": 0.1}),
    ],
    ids=str,
)
def test_every_kind_of_step_trains_it(method, options, folder, dataset):
    config = METHODS[method].configure(**{**SMALL, **options}, transformer=folder)
    frozen = METHODS[method].configure(**{**SMALL, **options, "client_rate": 0.0}, transformer=folder)
    trained, start = (
        train(training_data(dataset, dtype=torch.float32), c, seed=0, replicas=(0, 1)) for c in (config, frozen)
    )
    for moved, still in zip(trained.clients, start.clients, strict=True):
        assert moved.flat.isfinite().all()
        changed = {name for name, view in moved.views.items() if not torch.equal(view, still.views[name])}
        assert {"head.weight", "encoder.encoder.layer.0.output.dense.weight"} <= changed
    assert trained.ledger == start.ledger


def test_in_place_steps_are_the_functional_ones(folder, dataset):
    common = {**SMALL, "sigma": 0.05, "momentum": 0.0, "dtype": "float64", "transformer": folder}
    runs = [
        train(training_data(dataset), METHODS["dpzv"].configure(**common, perturbation=kind), seed=0)
        for kind in ("functional", "in-place")
    ]
    assert same_models(*runs, atol=1e-9)


def test_what_does_not_fit_is_one_line(folder, dataset, tmp_path):
    shapes = ((4,),) * 3
    common = {"embedding": 4, "hidden": 4, "top_model": True, "transformer": folder}
    cases = [
        ({"vocabulary": 14}, shapes, "use read with the transformer's own tokenizer"),
        ({"vocabulary": 13}, ((9,),) * 3, "at most 8 tokens"),
        ({"vocabulary": None}, shapes, "the features are not token ids"),
    ]
    for options, lengths, words in cases:
        with refused(words):
            architectures(lengths, 2, **common, **options)
    for source in (str(tmp_path), str(tmp_path / "nothing")):
        with refused(r"^transformer is "):
            TransformerModel.for_tokens(source, 4, vocabulary=13, length=4)


def test_a_pickle_is_not_read(folder, tmp_path):
    """A folder whose weights are pickled alone is refused: loading them would run what is in them."""
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((type(tmp_path)(folder) / name).read_bytes())
    torch.save({"embeddings.word_embeddings.weight": torch.zeros(13, 8)}, tmp_path / "pytorch_model.bin")
    with refused("safetensors"):
        TransformerModel.for_tokens(str(tmp_path), 4, vocabulary=13, length=4)


def test_without_the_extra_a_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused(r"^transformer is '.*', which needs the extra \[text\]: pip install"):
        read_pretrained("AutoModel", str(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client_model": "transformer"}, "client_model transformer needs transformer"),
        ({"client_model": "mlp", "transformer": "bert"}, "transformer needs client_model transformer"),
        ({"transformer": ""}, "transformer is ''"),
    ],
)
def test_a_transformer_is_named_and_used(options, words):
    with refused(words):
        METHODS["vafl"].configure(**options)


def test_the_command_line_reads_text_with_the_transformers_own_tokenizer():
    flags = DataFlags(dataset="imdb", data_options=["vocabulary=100"])
    with refused("vocabulary=100 does not apply: the tokenizer of bert has its own"):
        choose(TrainingFlags(method="vafl", settings=["transformer=bert"]), flags)
    # The model and the rates of a bag of embeddings are not a transformer's.
    spec = METHODS["vafl"]
    assert dataset_defaults("imdb", spec)["client_model"] == "tokens"
    assert not {"client_model", "client_rate"} & set(dataset_defaults("imdb", spec, transformer=True))


def test_the_embedding_bag_needs_no_download():
    clients, _ = architectures(((4,),) * 3, 2, embedding=4, hidden=4, top_model=True, vocabulary=13)
    assert clients == (Network(TokenBag, (13, 4)),) * 3


@pytest.mark.parametrize("method", ["split", "dpzv"])
def test_its_buffers_are_where_a_training_is(method, folder, dataset):
    """BERT's positions are no parameters: on a device of its own they must be there as well."""
    config = METHODS[method].configure(**SMALL, transformer=folder)
    here = train(training_data(dataset, dtype=torch.float32), config, seed=0, replicas=(0, 1))
    with pretended_cuda():
        data = TrainingData.of(dataset, dtype=torch.float32, device="cuda")
        there = train(data, config, seed=0, replicas=(0, 1), device="cuda")
    for mine, its in zip(here.clients, there.clients, strict=True):
        assert torch.equal(its.flat.held, mine.flat)
