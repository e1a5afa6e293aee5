"""A mistake is one line that names the flag or file, what was given and what would be right; nothing is left behind."""

import struct

import pytest

TRAINING = (
    (("--bogus",), ["--bogus"]),
    (("--method", "dpz"), ["--method", "'dpz'", "did you mean 'dpzv'"]),
    (("--attack", "label_direkt"), ["--attack", "did you mean 'label_direct'"]),
    (("--dataset", "digit"), ["--dataset", "did you mean 'digits'"]),
    (("--epsilon", "-1"), ["--epsilon", "-1", "use more than 0"]),
    (("--epsilon", "nan"), ["--epsilon", "nan", "finite"]),
    (("--delta", "2"), ["--delta", "2", "use less than 1"]),
    (("--epochs", "0"), ["--epochs is 0", "at least 1"]),
    (("--batch-size", "1409"), ["--batch-size is 1409", "at most the 1408"]),
    (("--queries", "0"), ["--queries is 0", "at least 1"]),
    (("--queries", "999", "--epochs", "1", "--trials", "1"), ["--queries 999", "too few"]),
    (("--set", "momentmu=0.3"), ["--set", "did you mean 'momentum'"]),
    (("--set", "self=0.3"), ["--set", "'self'", "momentum"]),
    (("--set", "momentum"), ["--set", "KEY=VALUE"]),
    (("--set", "epochs=2", "--epochs", "3"), ["--set epochs=2", "--epochs"]),
    (("--attack-set", "rule=argmn"), ["option rule of label_direct", "did you mean 'argmin'"]),
    (("--attack-set", "estimator=foo"), ["option estimator of label_direct", "'foo'", "ridge"]),
    (("--adversary", "server"), ["--adversary", "'server'", "client or eavesdropper"]),
    (("--clients", "3"), ["--clients is 3", "1, 2, 4, 8"]),
    (("--confidence", "95"), ["--confidence is 95", "between 0 and 1"]),
    (("--trials", "0"), ["--trials is 0", "at least 1"]),
    (("--seed", "-1"), ["--seed is -1", "at least 0"]),
    (("--device", "gpu"), ["--device is 'gpu'", "cuda"]),
    (("--method", "split", "--epsilon", "1"), ["--epsilon", "split", "no noise"]),
    (("--attack-set", "repeats=1"), ["--attack-set is 'repeats'", "rule, estimator"]),
    (("--attack", "label_norm", "--attack-set", "repeats=1"), ["--attack-set is 'repeats'", "nothing to choose from"]),
    (("--dataset", "mnist"), ["--data-dir", "DPZV_AUDIT_DATA"]),
    (("--dataset", "mnist", "--data-dir", "nowhere"), ["--data-dir is nowhere", "does not exist"]),
    (("--out", "a-file", "--epochs", "1", "--trials", "1", "--runs", "0"), ["--out is a-file", "folder"]),
)
RELEASE = ("--batch-size", "64", "--dataset-size", "1408", "--rounds", "176", "--clip", "10")
OTHERS = (
    (("atack",), ["'atack'", "attack"]),
    (("list",), ["methods"]),
    (("list", "method"), ["'method'", "did you mean 'methods'"]),
    (("report",), ["RUN"]),
    (("report", "nowhere"), ["nowhere", "result.json"]),
    (("train", "--epochs", "0"), ["--epochs is 0"]),
    (("account", *RELEASE), ["--sigma", "--epsilon"]),
    (("account", *RELEASE, "--sigma", "-1"), ["sigma", "-1", "above 0"]),
    (("account", *RELEASE, "--epsilon", "-1"), ["--epsilon", "-1", "above 0"]),
    (("account", *RELEASE, "--sigma", "1", "--adversary", "clent"), ["--adversary", "did you mean 'client'"]),
    (("audit",), ["method", "scores"]),
    (("audit", "scores", "good.csv", "nowhere.csv"), ["nowhere.csv"]),
    (("audit", "scores", "good.csv", "words.csv"), ["words.csv"]),
    (("audit", "scores", "good.csv", "nan.csv"), ["nan.csv"]),
    (("audit", "scores", "good.csv", "empty.csv"), ["empty.csv"]),
    (("audit", "scores", "good.csv", "good.csv", "--epsilon", "-1"), ["--epsilon is -1", "at least 0"]),
)


@pytest.fixture
def place(tmp_path):
    """A folder with score files, good and bad, and a file where a folder is expected."""
    (tmp_path / "a-file").write_text("mine")
    (tmp_path / "good.csv").write_text("".join(f"{i / 7}\n" for i in range(100)))
    (tmp_path / "words.csv").write_text("0.1\nhello\n")
    (tmp_path / "nan.csv").write_text("0.1\nnan\n")
    (tmp_path / "empty.csv").write_text("")
    return tmp_path


def check(tool, refused, place, arguments, words):
    before = {path: path.read_bytes() for path in place.iterdir()}
    line = refused(tool(*arguments, cwd=place), 2)
    for word in words:
        assert word in line
    assert {path: path.read_bytes() for path in place.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(*case, id=" ".join(case[0]), marks=pytest.mark.slow if place % 2 else ())
        for place, case in enumerate(TRAINING)
    ],
)
def test_a_wrong_option_of_the_main_command(tool, refused, place, arguments, words):
    check(tool, refused, place, ("attack", *arguments), words)


@pytest.mark.parametrize(("arguments", "words"), OTHERS, ids=[" ".join(a) for a, _ in OTHERS])
def test_a_wrong_option_of_another_command(tool, refused, place, arguments, words):
    check(tool, refused, place, arguments, words)


def test_json_does_not_change_a_refusal(tool, refused, place):
    assert "--epochs is 0" in refused(tool("attack", "--epochs", "0", "--json", cwd=place), 2)


def test_a_truncated_idx_file_is_named(tool, refused, place):
    shapes = {"train-images-idx3": (60_000, 28, 28), "train-labels-idx1": (60_000,)}
    shapes |= {"t10k-images-idx3": (10_000, 28, 28), "t10k-labels-idx1": (10_000,)}
    folder = place / "mnist"
    folder.mkdir()
    for name, shape in shapes.items():
        header = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)
        (folder / f"{name}-ubyte").write_bytes(header + bytes(100))
    done = tool("train", "--dataset", "mnist", "--data-dir", ".", cwd=place)
    line = refused(done, 2)
    assert "-ubyte" in line
    assert not (place / "dpzv-runs").exists()
