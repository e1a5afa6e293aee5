"""Where noise comes from in `train` and in simulations, and which parts of a run folder the bound covers."""

import fnmatch
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.core import training
from mechanisms.core.baselines import FirstOrderRun
from mechanisms.core.context import TrainingData
from mechanisms.methods.dpzo_run import DPZORun

from ...helpers import one_bit
from ...helpers.places import read_json
from ...helpers.seed_search import parties_of, shown_by

SOUND = "--method dpzv-sound --epochs 2 --no-controls"
GRADIENT = "--method vafl --epochs 1 --set dp=gradient --set epsilon=8 --no-controls"
MODELS = "models.safetensors"


@pytest.fixture
def run(tmp_path, cli):
    """Run a command with --json; its result and its folder."""

    def done(command):
        result = cli.answer(f"{command} --out {tmp_path}/runs")
        return result, Path(result["run"])

    return done


def exact(result):
    (bound,) = (b for b in result["privacy"]["bounds"] if b["accountant"] == "gdp-exact")
    return bound


@pytest.mark.parametrize("flags", [SOUND, pytest.param(GRADIENT, marks=pytest.mark.slow)], ids=["scalars", "gradients"])
def test_a_training_has_noise_that_no_seed_gives_and_one_with_a_noise_seed_has_no_sound_bound(flags, run):
    (one, first), (two, second) = (run(f"train {flags}") for _ in range(2))
    assert (first / MODELS).read_bytes() != (second / MODELS).read_bytes()
    assert one["noise"] == two["noise"]
    assert (one["noise"]["from"], one["noise"]["seed"]) == ("operating system", None)
    assert "seeded-noise" not in json.dumps(one["privacy"])
    assert one["privacy"] == two["privacy"]
    assert (one["bytes"], one["rounds"], one["staleness"]) == (two["bytes"], two["rounds"], two["staleness"])

    (three, third), (four, fourth) = (run(f"train {flags} --noise-seed 0") for _ in range(2))
    assert (third / MODELS).read_bytes() == (fourth / MODELS).read_bytes()
    assert (third / "result.json").read_bytes() == (fourth / "result.json").read_bytes()
    assert three["privacy"]["upper"] is None
    assert "seeded-noise" in three["privacy"]["gap"]
    assert "seeded-noise" in three["privacy"]["gap_explanations"]
    assert exact(three)["epsilon"] == exact(one)["epsilon"]  # the number without the gap stands beside
    assert not exact(three)["sound"]
    assert (three["noise"]["from"], three["noise"]["seed"]) == ("noise-seed", 0)
    assert MODELS in four["published"]["not_inside"]
    (_, other) = run(f"train {flags} --noise-seed 1")
    assert (other / MODELS).read_bytes() != (third / MODELS).read_bytes()
    (_, moved) = run(f"train {flags} --noise-seed 0 --seed 1")
    assert (moved / MODELS).read_bytes() != (third / MODELS).read_bytes()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("--method vafl --noise-seed 3", "--noise-seed is 3; leave it out: vafl adds no noise"),
        ("--sigma 0 --noise-seed 3", "--noise-seed is 3; leave it out: dpzv adds no noise"),
        ("--noise-seed -1", "--noise-seed is -1"),
        ("--set entropy=os", "--set is 'entropy'"),
    ],
)
def test_a_noise_seed_that_cannot_be_is_one_line(command, said, tmp_path, cli):
    assert said in cli.refusal(f"train {command} --epochs 1 --out {tmp_path}")


def test_a_sound_bound_on_one_training_covers_its_models_and_nothing_else(run):
    one, folder = run(f"train {SOUND}")
    assert one["privacy"]["upper"] is not None
    assert list(one["published"]["inside_bound"]) == [MODELS]
    assert "covers models.safetensors, which you may share" in one["published"]["words"]
    for page in ("report.html", "report.md"):
        assert "What the bound covers" in (folder / page).read_text()
        assert "covers nothing else in this folder" in (folder / page).read_text()
    two, _ = run(f"train {SOUND} --trials 2")
    assert two["privacy"]["upper"] is not None
    assert two["published"]["inside_bound"] == {}
    assert "2 trainings" in two["published"]["not_inside"][MODELS]


def test_a_bound_against_the_server_covers_no_label_in_its_models(run):
    result, _ = run("train --method feature-private")
    assert "covers features in models.safetensors, but no label" in result["published"]["words"]
    assert "which you may share" not in result["published"]["words"]


@pytest.mark.parametrize("method", ["dpzv", "split"])
def test_without_a_sound_bound_nothing_is_covered(method, run):
    result, _ = run(f"train --method {method} --epochs 1 --no-controls")
    assert result["published"]["inside_bound"] == {}
    assert result["privacy"]["gap"] in result["published"]["not_inside"][MODELS]
    assert (result["noise"] is None) == (method == "split")


def test_stacks_that_memory_made_smaller_leave_no_key(tmp_path, monkeypatch, cli):
    original = training.train

    def too_small(*arguments, **options):
        if len(arguments[3].replicas) > 2:
            options["checkpoints"].first_noise_key("cpu")  # what an attempt leaves that memory cut off
            raise MemoryError
        assert len(list((tmp_path / "runs" / "checkpoints").glob("*.noise-key"))) >= 1
        return original(*arguments, **options)

    monkeypatch.setattr(training, "train", too_small)
    assert cli(f"train {SOUND} --trials 5 --out {tmp_path}/runs --quiet").code == 0
    assert not (tmp_path / "runs" / "checkpoints").exists()


PICTURES = "--attack feature_inversion --adversary server"
SIMULATIONS = {
    "attack": "attack --epochs 1 --trials 2 --runs 4",
    "attack, pictures": f"attack --method vafl {PICTURES} --epochs 1 --trials 2 --runs 0",
    "audit": "audit method dpzv --epochs 1 --runs 4",
    "audit, one run": "audit method dpzv --epochs 1 --canaries 30",
    "audit, simulated": "audit method dpzv --simulate --dataset-size 640 --rounds 20 --runs 50",
}


def places(value, path=""):
    """JSON pointers of everything in a result down to where it is no object."""
    if not isinstance(value, dict) or not value:
        return [path]
    return [place for key, inner in value.items() for place in places(inner, f"{path}/{key}")]


def every_part_is_of_one_list(result, folder):
    """Whether a place of a result, or a file beside it, is inside the bound, outside, or of no record: one of them."""
    published = result["published"]
    lists = [published["inside_bound"], published["not_inside"], published["of_no_record"]]
    stored = read_json(folder / "result.json")
    files = [path.name for path in folder.iterdir()]
    for place in (*places(stored), *files):
        named = [
            part
            for parts in lists
            for part in parts
            if (place == part or place.startswith(f"{part}/") if part.startswith("/") else fnmatch.fnmatch(place, part))
        ]
        assert len(named) == 1, (place, named)


@pytest.mark.ci
@pytest.mark.parametrize("command", SIMULATIONS)
def test_a_simulation_is_seeded_says_so_and_is_not_to_be_published(command, run):
    result, folder = run(SIMULATIONS[command])
    if "vafl" not in SIMULATIONS[command]:
        assert (result["noise"]["from"], result["noise"]["seed"]) == ("seed", 0)
        assert "bounds assume secret noise" in result["noise"]["words"]
        assert "bounds assume secret noise" in (folder / "report.html").read_text()
        assert "seeded-noise" not in json.dumps(result["privacy"])
    assert result["published"]["inside_bound"] == {}
    assert "for the auditor alone" in result["published"]["words"]
    every_part_is_of_one_list(result, folder)


def test_every_part_of_a_training_is_inside_outside_or_of_no_record(run):
    every_part_is_of_one_list(*run("train --method dpzv-sound --epochs 1"))


SEED_PARTS = ("/noise", "/seed", "/command_line", "/run", "the folder's name", "environment.json")


@pytest.mark.parametrize(
    ("command", "flags", "again"),
    [
        ("train", "--set sampler=uniform", ""),
        ("train", "--set sampler=shuffled", ""),
        ("train", "--set sampler=poisson --noise-seed 4", "batches and noise"),
        ("train", "--noise-seed 4", "noise"),
        # label_direct reads batches of one size.
        ("attack", "--set sampler=uniform", "batches and noise"),
        ("attack", "", "noise"),
    ],
    ids=str,
)
def test_a_seed_from_which_noise_or_batches_follow_is_not_called_public(command, flags, again, run):
    less = "--trials 1 --no-controls" if command == "train" else "--trials 2 --runs 0 --alone"
    result, _ = run(f"{command} --epochs 1 --set sigma=1.0 {flags} {less}")
    published = result["published"]
    for part in SEED_PARTS:
        assert (part in published["not_inside"]) == bool(again)
        assert part in published["of_no_record"] or again or part == "the folder's name"
        assert published["not_inside"].get(part, again).startswith(again)
    sampled = "sampler=uniform" in flags or "sampler=poisson" in flags
    assert ("/staleness" in published["not_inside"]) == (command == "train" and sampled)


def test_a_training_whose_bound_counts_on_secret_batches_takes_them_from_the_operating_system(run):
    flags = "train --method dp-zo --sigma 0.05 --epochs 1 --no-controls"
    result, _ = run(flags)
    assert result["noise"]["words"].startswith("Its noise and its batches came from the operating system")
    assert list(result["published"]["inside_bound"]) == [MODELS]
    assert result["privacy"]["upper"] < exact(result)["epsilon"]["upper"]
    seeded, _ = run(f"{flags} --noise-seed 4")
    assert seeded["privacy"]["gap"] == "seeded-noise,seeded-batches"
    assert "Its batches follow from the run's seed 0." in seeded["noise"]["words"]
    assert not any(bound["sound"] for bound in seeded["privacy"]["bounds"])


def numbers_of(published, folder):
    """Every whole number in what may leave: parts about no record and covered ones, and the folder's name."""
    stored = read_json(folder / "result.json")
    allowed = (*published["of_no_record"], *published["inside_bound"])
    texts = [folder.name] if "the folder's name" not in published["not_inside"] else []
    for part in allowed:
        if part.startswith("/"):
            value = stored
            for key in part.strip("/").split("/"):
                value = value.get(key, {}) if isinstance(value, dict) else {}
            texts.append(json.dumps(value))
        elif part.endswith(".json"):
            texts.append((folder / part).read_text())
    return {int(digits) for text in texts for digits in re.findall(r"[0-9]{1,18}", text)}


def test_no_number_that_may_leave_is_the_seed_of_what_leaves(run):
    """The command line and the folder's name hold the run's seed, which gives nothing; a seeded training names it."""
    flags = "train --method dp-zo --sigma 0.05 --epochs 1 --no-controls --seed 90210"
    data = TrainingData.of(load("digits"), dtype=torch.float32, device="cpu")
    config = METHODS["dp-zo"].configure(sigma=0.05, epochs=1)
    for more, told, shown in (("", True, set()), ("--noise-seed 1", False, {90210})):
        result, folder = run(f"{flags} {more}")
        numbers = numbers_of(result["published"], folder)
        assert (90210 in numbers) == told
        parties = list(parties_of(data, config, load_file(folder / MODELS)))
        assert shown_by(parties, {*numbers, *range(20), 90210}, rounds=result["rounds"]) == shown


class SeededBatches(DPZORun):
    """A central training that leaves the operating system's batches aside."""

    def __init__(self, data, config, context):
        super().__init__(data, config, replace(context, sampling=None))


class SeededNoise(FirstOrderRun):
    """A first-order training whose noise follows from the run's seed."""

    def __init__(self, data, config, context):
        super().__init__(data, config, replace(context, origin=None))


@pytest.fixture
def outside(monkeypatch):
    """Make a method as if a package had brought it."""
    return lambda spec: monkeypatch.setitem(METHODS._built_in, spec.name, spec)


@pytest.mark.parametrize(
    ("spec", "flags", "gap", "words"),
    [
        (
            replace(METHODS["vafl"], name="liar", run=SeededNoise),
            GRADIENT.removeprefix("--method vafl"),
            "seeded-noise",
            "Its noise was not drawn",
        ),
        (
            replace(METHODS["dp-zo"], name="liar", run=SeededBatches),
            "--sigma 0.05 --epochs 1 --no-controls",
            "seeded-batches",
            "Its noise came from the operating system. Its batches did not: anyone who learns the run's seed 0 may",
        ),
    ],
    ids=["noise", "batches"],
)
def test_what_was_not_drawn_from_the_operating_system_is_not_said_to_be(spec, flags, gap, words, outside, run):
    outside(spec)
    result, _ = run(f"train --method liar {flags} --epochs 1")
    assert result["privacy"]["upper"] is None
    assert gap in result["privacy"]["gap"]
    assert result["noise"]["words"].startswith(words)
    assert result["noise"]["from"] == ("unknown" if gap == "seeded-noise" else "operating system")
    assert result["published"]["inside_bound"] == {}
    assert set(SEED_PARTS) <= set(result["published"]["not_inside"])


def test_a_page_says_what_protects_where_no_release_is_stated(outside, run, tmp_path, cli):
    """Randomised response of one bit an answer, which is true: nobody calls that no noise."""
    outside(one_bit.SPEC)
    result, folder = run("train --method one-bit --epochs 1 --no-controls")
    assert result["noise"]["from"] == "operating system"
    assert result["privacy"]["gap"] == "not-released"
    assert one_bit.NOT_RELEASED in result["privacy"]["gap_explanations"]["not-released"]
    assert result["bytes"]["down"] == -(-result["rounds"] // 8)
    (tmp_path / "claims.toml").write_text(
        "[[claim]]\nname = 'one bit'\nmethod = 'one-bit'\nepsilon = 1.0\ndelta = 1e-5\n"
        "adversary = 'client'\nneighbours = 'replace-label'\n"
    )
    assert cli(f"verify {tmp_path}/claims.toml --out {tmp_path}/verified --quiet").code == 1
    pages = [*folder.glob("report.*"), *(tmp_path / "verified").rglob("report.*")]
    assert len(pages) == 4
    for page in pages:
        text = page.read_text().lower()
        assert one_bit.NOT_RELEASED in text
        assert not any(phrase in text for phrase in ("no noise", "no-noise"))
    assert "the answers to the active client, hence labels" in (folder / "report.md").read_text()
    assert cli.refusal("account --method one-bit").endswith(
        f"--method is 'one-bit', states no release: {one_bit.NOT_RELEASED}"
    )


def test_a_method_without_a_release_whose_coins_follow_from_the_seed_is_not_called_secret(outside, run):
    outside(one_bit.SEEDED)
    result, _ = run("train --method one-bit --epochs 1 --no-controls")
    assert result["noise"]["from"] == "unknown"
    assert "came from the operating system" not in json.dumps(result)


@pytest.mark.parametrize(
    ("flag", "sampler", "gap"),
    [
        ("--seeded-noise", "shuffled", "seeded-noise"),
        ("--seeded-batches", "uniform", "seeded-batches"),
        ("--seeded-batches", "poisson", "seeded-batches"),
        ("--seeded-batches", "shuffled", None),
    ],
)
def test_account_takes_a_seed_that_others_learn_for_a_gap(flag, sampler, gap, cli):
    release = "account --batch-size 16 --dataset-size 1600 --rounds 1000 --noise-multiplier 9"
    about = f"--sampler {sampler} --adversary client --neighbours replace-label"
    found = []
    for flags in ("", flag):
        bounds = cli.answer(f"{release} {flags} {about}")["bounds"]
        found.append(next(b for b in bounds if b["accountant"] == "gdp-exact"))
    secret, seeded = found
    assert secret["sound"]
    assert (seeded["sound"], seeded["gap"], seeded["epsilon"]) == (gap is None, gap, secret["epsilon"])
