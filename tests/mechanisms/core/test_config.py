import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.base.errors import InputError
from mechanisms import METHODS, method_named
from mechanisms.core.config import build_config
from mechanisms.core.context import RunContext
from mechanisms.core.federation import Federation
from mechanisms.methods.compressed import SplitConfig
from mechanisms.methods.dpzv import DPZVConfig
from mechanisms.methods.vafl import VAFLConfig

from ...helpers.refusals import refused
from ..conftest import training_data

WRONG = {
    "client_model": ["cnn", 3],
    "defences": ["label-rr", 3],
    "transformer": ["", 3],
    "frozen_blocks": [-1, 1.5, "all"],
    "client_blocks": [-1, 1.5, None],
    "half_precision": ["perhaps", 3],
    "softmax_outputs": ["perhaps", 3],
    "batch_size": [0, -1, 2.5, "many", None],
    "epochs": [0, -3, 1.5],
    "client_rate": [-1e-9, math.nan, math.inf, "fast"],
    "server_rate": [-1.0, math.nan, math.inf],
    "momentum": [-0.1, 1.0, 2.0, math.nan],
    "server_momentum": [-0.1, 1.0, math.nan],
    "rate_schedule": ["falling", 3],
    "shift": [-1, 101, 1.5],
    "embedding": [0, -4],
    "hidden": [0],
    "top_model": ["perhaps", 3],
    "sampler": ["sorted", "Poisson", ""],
    "sample_rate": [0.0, -0.1, 1.5, 1e-12, math.nan, "often"],
    "dtype": ["float16", "double"],
    "epsilon": [0.0, -1.0, math.nan, math.inf, "one"],
    "delta": [0.0, 1.0, -1e-5, math.nan],
    "calibration": ["papers", None],
    "sigma": [-0.1, math.nan, math.inf],
    "clip": [0.0, -1.0, math.inf, math.nan],
    "clip_rule": ["one-sided"],
    "difference": ["forward"],
    "smoothing": [0.0, -1e-3, math.nan],
    "server_smoothing": [0.0, -1e-3],
    "server_update": ["adam", "SGD"],
    "server_clip": [0.0, -1.0],
    "server_noise_multiplier": [-1.0, math.nan],
    "activation": ["asynchronous"],
    "activation_probabilities": ["half", (0.5, "x")],
    "compute_times": [("slow",), 3.0],
    "direction": ["unit-sphere", 1],
    "perturbation": ["inplace"],
    "directions": [0, -1, 1.5],
    "participation_cap": [0, -1, 1.5],
    "distinct_ids": ["often"],
    "noise": ["fine", None, 1e-3],
}
TOGETHER = [
    ({"compute_times": (1.0, 2.0), "activation": "random"}, "use activation cyclic"),
    ({"activation_probabilities": (0.5, 0.5)}, "need activation random"),
    ({"activation": "random", "activation_probabilities": (0.5, 0.0)}, "use more than 0 for each of"),
    ({"compute_times": (1.0, -2.0)}, "use more than 0 for each of"),
    ({"directions": 2, "perturbation": "in-place"}, "needs perturbation functional"),
    ({"server_update": "dp-sgd"}, "server_noise_multiplier above 0"),
]


def test_every_option_has_a_wrong_value_here():
    assert set(WRONG) == set(DPZVConfig.model_fields)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_option_is_one_line_with_its_name_and_value(key, value):
    with pytest.raises(InputError) as caught:
        method_named("dpzv").configure(**{key: value})
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(key)
    if not isinstance(value, tuple):
        assert repr(value) in message


def test_a_switch_is_no_number_anywhere():
    for name, method in METHODS.items():
        switches = 0
        for key, field in method.config.model_fields.items():
            for value in (True, False):
                if key in method.config.unused:
                    switches += 1
                    continue
                if field.annotation is bool:
                    if key != "half_precision" or not value:  # which needs a transformer
                        assert getattr(method.configure(**{key: value}), key) is value, (name, key)
                    switches += 1
                    continue
                with refused(f"^{key} is {value}: is no switch; use a number, not true or false$"):
                    method.configure(**{key: value})
        assert switches >= 4
    with refused(r"compute_times is .*True.*: is no switch"):
        method_named("dpzv").configure(compute_times=[True, 2.0])


@pytest.mark.parametrize(("options", "rule"), TOGETHER)
def test_options_that_do_not_go_together_are_one_line(options, rule):
    with refused(rule):
        build_config(DPZVConfig, options)


@pytest.mark.parametrize("method", METHODS)
def test_an_unknown_option_suggests_the_nearest(method):
    with refused(rf"option of method {method} is 'batchsize': did you mean 'batch_size'"):
        method_named(method).configure(batchsize=3)


def test_an_unknown_method_suggests_the_nearest():
    with refused(r"method is 'dpvz': did you mean 'dpzv'"):
        method_named("dpvz")


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.sampled_from(sorted(DPZVConfig.model_fields)), st.text(min_size=1, max_size=20))
def test_text_is_taken_or_refused_in_one_line(key, text):
    message = ""
    try:
        build_config(DPZVConfig, {key: text})
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert not message or message.startswith(key)


def test_paper_001s_values_are_the_defaults():
    config = DPZVConfig()
    assert (config.clip, config.smoothing, config.momentum) == (10.0, 1e-3, 0.9)
    assert (config.client_rate, config.server_rate) == (5e-4, 0.005)
    assert (config.server_update, config.clip_rule, config.difference) == ("sgd", "symmetric", "central")
    assert (config.epsilon, config.calibration, config.sampler) == (1.0, "paper", "shuffled")


def test_methods_differ_in_what_they_say():
    sound = method_named("dpzv-sound").configure()
    assert (sound.server_update, sound.calibration) == ("joint-zo", "sound")
    # What a user says comes before a method's defaults.
    assert method_named("dpzv-sound").configure(server_update="frozen").server_update == "frozen"
    assert isinstance(method_named("split").configure(), SplitConfig)
    assert all(name == spec.name for name, spec in METHODS.items())


class NarrowDPZVConfig(DPZVConfig):
    """Planted: extends the configuration of another method."""


class OwnRun:
    """Planted: a run that says whose it is."""

    def __init__(self, data, config, context):
        self.federation = Federation(data, config, context)
        self.round = 0


@pytest.mark.parametrize(("kind", "beside"), [(NarrowDPZVConfig, "dpzv"), (VAFLConfig, "vafl")])
def test_a_run_is_found_by_its_method_whatever_the_type_of_the_configuration(kind, beside):
    """A method that extends another's configuration, or shares it, has its own run and replaces nobody's."""
    data = training_data(dtype=torch.float32)
    planted = replace(METHODS[beside], name="planted", config=kind, run=OwnRun)
    small, context = {"batch_size": 4, "epochs": 1}, RunContext(seed=0)
    assert type(planted.start(data, planted.configure(**small), context)) is OwnRun
    for spec in METHODS.values():
        config = spec.configure(**spec.used(small))
        assert type(spec.start(data, config, context)) is type(spec.run(data, config, context))
    # A configuration that extends a method's own may be trained by that method as well.
    own = METHODS[beside].run(data, METHODS[beside].configure(**small), context)
    assert type(METHODS[beside].start(data, kind(**small), context)) is type(own)


def test_configs_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        DPZVConfig().clip = 1.0


@pytest.mark.parametrize("method", ["dpzv", "dpzv-sound"])
def test_noise_by_hand_claims_nothing_unless_a_claim_is_given_too(method):
    spec = METHODS[method]
    assert spec.configure().epsilon == spec.configure(sigma=None).epsilon == 1.0
    assert spec.configure(sigma=0.1).epsilon is None
    assert spec.configure(sigma=0.1, epsilon=2.0).epsilon == 2.0
