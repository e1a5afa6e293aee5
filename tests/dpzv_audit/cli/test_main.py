import importlib.metadata
import os

import pytest

import dpzv_audit

from ...helpers.places import read_json

HALVED = "Memory ran out: from then on 2 trainings at a time, to the same numbers."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("account --sigma one", "--sigma is 'one'; use a number"),
        ("calibrate --epsilon one", "--epsilon is 'one'; use a number"),
        ("account --rounds 2.5", "--rounds is '2.5'; use a whole number"),
        ("account --clipp 5", "No such option: --clipp, did you mean --clip?"),
        ("account --batch 5", "No such option: --batch, did you mean --batch-size or --batch-coupling?"),
        ("account --zzz 5", "No such option: --zzz"),
        ("account --sigma", "Option '--sigma' requires an argument."),
        ("attack --set clip=a", "--set clip is 'a'; use a number"),
        ("attack --set directions=1.5", "--set directions is 1.5; use a whole number"),
        ("train --set top_model=2", "--set top_model is 2; use true or false"),
        ("train --set epochs=0", "--set epochs is 0; use at least 1"),
        ("train --delta 1", "--delta is 1.0; use less than 1"),
        ("train --batch-size 9999", "--batch-size is 9999; use at most the 1408 training records"),
        ("attack --attack-set a=1", "--attack-set is 'a'; use one of rule, estimator"),
        (
            "attack --attack label_norm --attack-set a=1",
            "--attack-set is 'a'; leave it out: there is nothing to choose from",
        ),
        ("calibrat", "No such command 'calibrat'. Did you mean 'calibrate'?"),
        (
            "nothing",
            "No such command 'nothing'. Must be one of attack, audit, hunt, matrix, account, calibrate, verify, "
            "train, reproduce, list, report, view.",
        ),
        ("ATTACK", "No such command 'ATTACK'. Did you mean 'attack'?"),
        ("dpzv", "No such command 'dpzv'. Did you mean 'attack --method dpzv'?"),
        ("audit dpzv", "No such command 'dpzv'. Did you mean 'audit method dpzv'?"),
        ("audit label-rr", "No such command 'label-rr'. Did you mean 'audit defence label-rr'?"),
        ("help calibrat", "No such command 'calibrat'. Did you mean 'calibrate'?"),
        ("attack dpzv", "Got unexpected extra argument (dpzv), did you mean --method dpzv?"),
        ("attack label_direct", "Got unexpected extra argument (label_direct), did you mean --attack label_direct?"),
        ("attack our:train", "Got unexpected extra argument (our:train), did you mean --system our:train?"),
        ("train MNIST x", "Got unexpected extra arguments (MNIST x), did you mean --dataset mnist?"),
        ("verify a.toml b.toml", "Got unexpected extra argument (b.toml)"),
        ("attack --method DPZV", "--method is 'DPZV': did you mean 'dpzv'?"),
        ("attack --method foo", "--method is 'foo'; see dpzv-audit list methods"),
        ("attack --attack label_dirct", "--attack is 'label_dirct': did you mean 'label_direct'?"),
        ("attack --attack foo", "--attack is 'foo'; see dpzv-audit list attacks"),
    ],
)
def test_a_mistake_of_form_names_what_was_given(arguments, says, cli):
    assert cli.refusal(arguments) == f"dpzv-audit: error: {says}"


@pytest.mark.parametrize("words", ["", "attack", "audit", "audit scores"])
def test_help_of_a_command_is_shown_by_its_name_too(words, cli):
    asked = cli(f"help {words}")
    assert (asked.code, asked.out) == (0, cli(f"{words} --help").out)
    assert asked.out.startswith(f"Usage: dpzv-audit {words}")


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_that_of_the_installed_package(flag, cli):
    done = cli(flag)
    assert (done.code, done.out) == (0, f"dpzv-audit {dpzv_audit.__version__}\n")
    assert dpzv_audit.__version__ == importlib.metadata.version("dpzv-audit")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: out of memory\nmore")])
def test_memory_that_runs_out_for_good_is_one_line(error, monkeypatch, cli):
    from dpzv_audit.cli import listing

    def hungry(*_):
        raise error

    monkeypatch.setattr(listing, "listed", hungry)
    said = cli.refusal("list methods", code=3)
    assert said.startswith("dpzv-audit: error: memory ran out; use fewer --trials")


@pytest.mark.parametrize("command", ["attack", "train", "audit", "matrix", "reproduce"])
def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(command, monkeypatch, cli, tmp_path):
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and str(path) == str(tmp_path)))
    out = f"{tmp_path}/new/runs"
    what = {"reproduce": "reproduce czofo-table4", "audit": "audit method dpzv"}
    assert cli.refusal(f"{what.get(command, command)} --out {out}", code=3) == (
        f"dpzv-audit: error: --out is {out}, but {tmp_path} cannot be written to (Permission denied); "
        "give another --out DIR"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("set_by_user", "then"), [(None, "1"), ("3", "3")])
def test_a_process_uses_one_thread_unless_the_user_says_otherwise(monkeypatch, set_by_user, then, cli):
    if set_by_user is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    assert cli("--version").code == 0
    assert os.environ["OMP_NUM_THREADS"] == then


def test_an_attack_says_once_that_memory_did_not_suffice_for_all_trainings_at_once(monkeypatch, tmp_path, cli):
    """Planted: neither nine trainings nor four fit."""
    from attacks.core import setting as setting_module
    from mechanisms import controls

    train, asked = setting_module.train, []
    federation, frozen = controls.Federation, []

    def too_small(method, data, config, context, **options):
        asked.append(len(context.replicas))
        if len(asked) <= 2:
            raise MemoryError
        return train(method, data, config, context, **options)

    def watched(data, config, context):
        frozen.append(len(context.replicas))
        return federation(data, config, context)

    monkeypatch.setattr(setting_module, "train", too_small)
    monkeypatch.setattr(controls, "Federation", watched)
    size = "--attack-set pool=128 --attack-set shadows=1 --trials 4 --epochs 1 --runs 0"
    done = cli(f"attack --method split --attack membership_loss {size} --out {tmp_path}")
    assert done.code == 0
    assert asked[:7] == [9, 4, 2, 2, 2, 2, 1]
    assert frozen == [2, 2]
    assert " ".join(done.out.split()).count(HALVED) == 1


def test_a_training_says_that_memory_did_not_suffice_for_all_trials_at_once(monkeypatch, tmp_path, cli):
    """Planted: five trials do not fit, two do; the controls start with what fits."""
    from mechanisms import controls
    from mechanisms.core import training

    train, federation, frozen = training.train, controls.Federation, []

    def too_small(method, data, config, context, **options):
        if len(context.replicas) > 2:
            raise MemoryError
        return train(method, data, config, context, **options)

    def watched(data, config, context):
        frozen.append(len(context.replicas))
        return federation(data, config, context)

    command = "train --method split --trials 5 --epochs 1 --set dtype=float64"
    done = cli(f"{command} --out {tmp_path}/whole")
    assert done.code == 0
    assert "Memory ran out" not in done.out
    monkeypatch.setattr(training, "train", too_small)
    monkeypatch.setattr(controls, "Federation", watched)
    done = cli(f"{command} --out {tmp_path}/halved")
    assert done.code == 0
    assert set(frozen) == {1, 2}
    assert " ".join(done.out.split()).count(HALVED) == 1
    whole, halved = (read_json(next((tmp_path / name).glob("*/result.json"))) for name in ("whole", "halved"))
    assert halved["utility"]["test_accuracy"] == whole["utility"]["test_accuracy"]
    assert halved["utility"]["controls"] == whole["utility"]["controls"]
    assert halved["utility"]["history"][0]["loss"] == pytest.approx(whole["utility"]["history"][0]["loss"], rel=1e-9)
    assert (halved["bytes"], halved["staleness"]) == (whole["bytes"], whole["staleness"])
    assert not (tmp_path / "halved" / "checkpoints").exists()


def test_trials_whose_models_no_memory_holds_are_refused_in_one_line(cli, tmp_path):
    assert cli.refusal(f"train --trials 1000000000 --epochs 1 --out {tmp_path}", code=3).startswith(
        "dpzv-audit: error: memory ran out; use fewer --trials"
    )


def test_a_setting_that_is_given_twice_is_refused(cli):
    assert (
        cli.refusal("account --method dpzv --set clip=1 --set clip=2")
        == "dpzv-audit: error: --set gives clip twice, give it once"
    )


NUMBERS = "--batch-size 64 --dataset-size 1408 --rounds 176 --clip 10"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"account {NUMBERS} --sigma 1 --dataset mnist", "--dataset is 'mnist', which goes with --method"),
        (
            f"account {NUMBERS} --sigma 1 --data-dir /nope",
            "--data-dir is '/nope', which goes with --method",
        ),
        (f"calibrate --epsilon 1 {NUMBERS} --dataset mnist", "--dataset is 'mnist', which goes with --m"),
        (
            f"calibrate --epsilon 1 {NUMBERS} --data-dir /nope",
            "--data-dir is '/nope', which goes with --m",
        ),
        (
            "account --method dpzv --dataset-size 1408 --dataset bogus",
            "--dataset is 'bogus', which says nothing beside --dataset-size, give one of them",
        ),
        ("account --table --method dpzv", "--method does not go with --table, which prints every case as"),
        ("account --table --json", "--json does not go with --table, which prints every case as Markdown"),
        (
            "attack --method split --attack-set estimator=correlation",
            "--attack-set is 'estimator=correlation', but split send",
        ),
        ("attack --self-check --out new", "--out does not go with --self-check, which runs only"),
        ("attack --self-check --runs 2000", "--runs does not go with --self-check, which runs only"),
        ("attack --self-check --chunk 3", "--chunk does not go with --self-check, which runs only"),
        ("attack --self-check --confidence 0.9", "--confidence does not go with --self-check, which runs"),
        ("train --method split --delta 1e-3", "--delta does not apply to method split with dp none"),
    ],
)
def test_a_flag_that_would_say_nothing_is_refused(arguments, says, monkeypatch, tmp_path, cli):
    monkeypatch.chdir(tmp_path)
    assert cli.refusal(arguments).startswith(f"dpzv-audit: error: {says}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"account {NUMBERS} --sigma 1e-300", "--sigma is 1e-300; use a number between"),
        ("account --method dpzv --dataset-size 10", "batch_size is 64; use at most the 10 training"),
        ("account --method dpzv --dataset-size 10 --batch-size 20", "--batch-size is 20; use"),
        ("calibrate --epsilon 1 --method dpzv --dataset-size 10", "batch_size is 64; use at"),
    ],
)
def test_a_number_out_of_range_names_its_flag(arguments, says, cli):
    said = cli.refusal(arguments)
    assert said.startswith(f"dpzv-audit: error: {says}")
    assert "--" in said.removeprefix("dpzv-audit: error: ")


def test_a_folder_that_cannot_be_made_names_its_flag(monkeypatch, tmp_path, cli):
    monkeypatch.setattr("dpzv_audit.runs.os.access", lambda *_: True)
    (tmp_path / "checkpoints").write_text("a file")
    assert cli.refusal(f"train --epochs 1 --out {tmp_path}", code=3).endswith("; give another --out DIR")
