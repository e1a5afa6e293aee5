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
from mechanisms.core.models import Network, TokenBag, layout_of
from mechanisms.core.pretrained import FrozenStages, TransformerModel, frozen_stages
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


STEM = {"client_model": "transformer-stem", "transformer": "bert"}


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
        ({"vocabulary": 14}, shapes, "read it with the transformer's own tokenizer"),
        ({"vocabulary": 13}, ((9,),) * 3, "at most 8 tokens"),
        ({"vocabulary": None}, shapes, "the features are not token ids"),
    ]
    for options, lengths, words in cases:
        with refused(words):
            architectures(lengths, 2, **common, **options)
    for source in (str(tmp_path), str(tmp_path / "nothing")):
        with refused(r"^transformer is "):
            architectures(shapes, 2, **{**common, "transformer": source}, vocabulary=13)


def test_a_pickle_is_not_read(folder, tmp_path):
    """A folder whose weights are pickled alone is refused: loading them would run what is in them."""
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((type(tmp_path)(folder) / name).read_bytes())
    torch.save({"embeddings.word_embeddings.weight": torch.zeros(13, 8)}, tmp_path / "pytorch_model.bin")
    with refused("safetensors"):
        architectures(((4,),), 2, embedding=4, hidden=4, top_model=True, transformer=str(tmp_path), vocabulary=13)


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
        ({"client_model": "transformer-stem"}, "client_model transformer-stem needs transformer"),
        ({"frozen_blocks": 1}, "frozen_blocks needs transformer"),
        ({"half_precision": True}, "half_precision needs transformer"),
        ({"transformer": "bert", "half_precision": True, "dtype": "float64"}, "half_precision needs dtype float32"),
        ({"transformer": "bert", "client_blocks": 1}, "client_blocks needs client_model transformer-stem"),
        ({**STEM, "top_model": False}, "without a top model: the server has the rest"),
        ({**STEM, "frozen_blocks": 0}, "frozen_blocks is 0; use fewer than client_blocks, 0"),
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


@pytest.fixture(scope="module", params=["bert", "distilbert"])
def encoder(request, folder, tmp_path_factory):
    """A folder with an encoder of either kind: how they are called and where their blocks are differs."""
    if request.param == "bert":
        return folder
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("distilbert")
    config = transformers.DistilBertConfig(
        vocab_size=len(VOCABULARY), dim=8, n_layers=2, n_heads=2, hidden_dim=16, max_position_embeddings=8
    )
    transformers.DistilBertModel(config).save_pretrained(path)
    return str(path)


def evaluated(model, ids, *, head=0):
    """Outputs of a model at its pre-trained start; its own layers drawn from the stream of party `head`."""
    evaluator = evaluator_for(model, stack=1)
    streams = Streams(seed=0, replicas=(0,), dtype=torch.float32)
    parameters = ParameterStack.initial(evaluator.layout, streams, party=head, pretrained=model.pretrained())
    return evaluator.forward(parameters, ids)


IDS = torch.tensor([[[5, 6, 7, 8], [9, 10, 0, 0], [0, 0, 0, 0], [5, 6, 7, 8]]])


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_frozen_blocks_change_what_is_trained_and_not_what_comes_out(blocks, encoder):
    whole = TransformerModel(encoder, 3)
    frozen = TransformerModel(encoder, 3, first=1 + blocks)
    assert torch.allclose(evaluated(frozen, IDS), evaluated(whole, IDS), rtol=0, atol=1e-6)
    names = {name for name, _ in layout_of(frozen)}
    # Blocks are numbered from 0 in each part.
    assert len({name.split(".layer.")[1][0] for name in names if ".layer." in name}) == 2 - blocks
    assert not any("embeddings" in name for name in names)
    assert {"head.weight", "head.bias"} <= names


def test_frozen_outputs_are_computed_once_for_each_run_of_tokens_and_by_itself(folder, monkeypatch):
    frozen_stages.cache_clear()
    computed = []
    plain = FrozenStages._computed
    monkeypatch.setattr(
        FrozenStages, "_computed", lambda self, *rows: computed.append(len(rows[0])) or plain(self, *rows)
    )
    model = TransformerModel(folder, 3, first=2)
    first = evaluated(model, IDS)
    assert computed == [1, 1, 1]  # of four records two are alike
    assert torch.equal(evaluated(model, IDS[:, 1:]), first[:, 1:])
    assert len(computed) == 3
    frozen_stages.cache_clear()
    assert torch.equal(evaluated(model, IDS.flip(1)).flip(1), first)


def test_what_no_longer_fits_is_computed_again(folder, monkeypatch):
    frozen_stages.cache_clear()
    monkeypatch.setattr("mechanisms.core.pretrained._MOST_KEPT", 0)
    stages = frozen_stages(folder, 1, "cpu")
    ids = IDS[0, :1]
    assert torch.equal(stages.hidden(ids, ids != 0), stages.hidden(ids, ids != 0))
    assert not stages._kept
    frozen_stages.cache_clear()


@pytest.mark.parametrize(
    ("method", "options"),
    [("split", {}), ("dpzv", {"sigma": 0.0}), ("dpzv", {"sigma": 0.0, "perturbation": "in-place", "momentum": 0.0})],
    ids=str,
)
def test_training_leaves_frozen_blocks_and_moves_the_others(method, options, folder, dataset):
    options = {**SMALL, **options, "frozen_blocks": 1}
    trained = train(
        training_data(dataset, dtype=torch.float32), METHODS[method].configure(**options, transformer=folder), seed=0
    )
    read = TransformerModel(folder, None, first=2).pretrained()
    weight = "encoder.encoder.layer.0.output.dense.weight"
    for stack in trained.clients:
        assert set(stack.views) == {*read, "head.weight", "head.bias"}
        assert stack.flat.isfinite().all()
        assert not torch.equal(stack.views[weight][0], read[weight])


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_split_transformer_is_the_whole_one_where_one_client_has_all(blocks, encoder):
    stem = TransformerModel(encoder, None, last=1 + blocks)
    rest = TransformerModel(encoder, 2, first=1 + blocks, server=True)
    sent = evaluated(stem, IDS)
    assert sent.shape == (1, 4, 4 * 8)
    assert not sent[0, 1, 2 * 8 :].any()  # padding is sent as zeros
    together = evaluated(rest, sent, head=1)
    assert torch.allclose(together, evaluated(TransformerModel(encoder, 2), IDS, head=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "options"),
    [("split", {}), ("vafl", {}), ("cascaded", {}), ("zoo-vfl", {}), ("dpzv", {"sigma": 0.0}), ("czofo", {})],
    ids=str,
)
def test_every_kind_of_step_trains_a_split_transformer(method, options, folder, dataset):
    own = {
        **SMALL,
        **options,
        "client_model": "transformer-stem",
        "client_blocks": 1,
        "embedding": 4 * 8,
        "transformer": folder,
    }
    data = training_data(dataset, dtype=torch.float32)
    trained = train(data, METHODS[method].configure(**own), seed=0)
    still = train(data, METHODS[method].configure(**{**own, "client_rate": 0.0, "server_rate": 0.0}), seed=0)
    for moved, start in zip((trained.server, *trained.clients), (still.server, *still.clients), strict=True):
        assert moved.flat.isfinite().all()
        assert not torch.equal(moved.flat, start.flat)
    names = {name for name, _ in trained.server.layout}
    assert names == {*TransformerModel(folder, 2, first=2).pretrained(), "head.weight", "head.bias"}


def test_half_precision_is_near_and_keeps_parameters_and_messages_whole(folder, dataset):
    whole = evaluated(TransformerModel(folder, 3), IDS)
    half = evaluated(TransformerModel(folder, 3, half=True), IDS)
    assert half.dtype == torch.float32
    assert 0 < (half - whole).norm() < 0.02 * whole.norm()
    config = METHODS["split"].configure(**SMALL, transformer=folder, half_precision=True)
    trained = train(training_data(dataset, dtype=torch.float32), config, seed=0)
    assert {stack.flat.dtype for stack in trained.clients} == {torch.float32}
    assert all(stack.flat.isfinite().all() for stack in trained.clients)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frozen_blocks": 3}, "frozen_blocks is 3; use at most 2 with 2 blocks"),
        ({"client_model": "transformer-stem", "client_blocks": 2, "embedding": 32}, "use at most 1 with 2 blocks"),
        ({"client_model": "transformer-stem", "embedding": 16}, "embedding is 16; use 32: hidden states of 4 tokens"),
    ],
)
def test_a_part_that_the_transformer_lacks_is_one_line(options, words, folder):
    common = {"embedding": 4, "hidden": 4, "top_model": True, "transformer": folder, "client_blocks": 0}
    with refused(words):
        architectures(((4,),) * 3, 2, 13, **{**common, **options})


def test_an_encoder_without_blocks_of_the_usual_kind_is_trained_whole(folder, monkeypatch):
    monkeypatch.setattr("mechanisms.core.pretrained._encoder", lambda source: torch.nn.Linear(1, 1))
    with refused("neither of BERT's kind nor of DistilBERT's"):
        TransformerModel("other", 3, first=1).module()
