"""Every built-in method and data set keeps the public contract; attacks do in `tests/attacks/core/test_controls.py`."""

import pytest

from dpzv_audit.base.errors import InputError
from dpzv_audit.data import DATASETS
from dpzv_audit.data.spec import DATA_VARIABLE
from dpzv_audit.testing import check_dataset, check_method
from mechanisms import METHODS

NOISE = {"dp": "gradient", "dp_sigma": 0.4}, {"dp": "embedding", "dp_sigma": 0.4}, {"sigma": 0.7}, {"noise": "float"}
LARGE = {"amazon-polarity", "imdb", "modelnet40", "cifar10", "mnist", "fashion-mnist"}


def _takes(name, options):
    try:
        METHODS[name].configure(**options)
    except InputError:
        return False
    return True


OTHERWISE = {"czofo": {"embeddings": "fresh"}, "compressed": {"local_gradient": "recomputed", "local_steps": 2}}
"""Settings under which other messages travel."""

STILL = {"feature-private": {"statistics": 1.0 - 1e-9}}
"""Settings under which nothing else that is noised moves what is sent."""


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name):
    check_method(METHODS[name])


@pytest.mark.parametrize("name", OTHERWISE)
def test_the_contract_is_kept_where_other_messages_travel(name):
    check_method(METHODS[name], **OTHERWISE[name])


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in METHODS for options in NOISE if _takes(name, options)]
)
def test_the_noise_of_every_method_is_what_it_states(name, options):
    check_method(METHODS[name], **options, **STILL.get(name, {}))


def _sets():
    for name in DATASETS:
        marks = [pytest.mark.data] * bool(DATASETS[name].source) + [pytest.mark.slow] * (name in LARGE)
        marks += [pytest.mark.ci] * (name in ("adult", "bank"))
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(_sets()))
def test_every_data_set_keeps_the_contract(name):
    spec = DATASETS[name]
    try:
        spec.load()
    except InputError as error:
        pytest.skip(f"without {DATA_VARIABLE} or its files: {error}")
    check_dataset(spec)
