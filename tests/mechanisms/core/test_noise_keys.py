"""Rounds that are run again after a kill release what they released before, and no key outlives its rounds."""

import json
import os
import signal
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from dpzv_audit.runs import version_of
from dpzv_audit.testing.methods import OneKey
from mechanisms import METHODS
from mechanisms.core import checkpoints
from mechanisms.core.checkpoints import FileCheckpoints, NoiseKeyFile
from mechanisms.core.noise import SecretBits

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import same_models, training_data

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 7
"""Rounds an epoch of `data()` in batches of 5."""


def data():
    """38 random records of two clients."""
    return training_data(records=38, clients=2, dtype=torch.float32)


CASES = {
    "a scalar channel and a dp-sgd server": ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}),
    "a server that steps by the scalars": ("dpzv-sound", {"epsilon": 4.0, "sampler": "shuffled"}),
    "embeddings, the first table among them": ("zoo-vfl", {"dp": "embedding", "dp_sigma": 0.3}),
    "gradients": ("vafl", {"dp": "gradient", "dp_sigma": 0.3}),
    "batches and directions that are secret": ("dp-zo", {"sigma": 0.3}),
}


def config_of(case):
    method, options = CASES[case]
    return METHODS[method].configure(batch_size=5, epochs=4, embedding=4, hidden=6, **options)


class Transcript:
    """Keeps what is sent, as bytes; ends the process in the middle of a round, without warning, where it is told to."""

    def __init__(self, dies_at=None):
        self.sent, self._dies_at = [], dies_at

    def on_message(self, message):
        ids = "" if message.ids is None else message.ids.numpy().tobytes().hex()
        self.sent.append((message.round, message.kind, message.payload.numpy().tobytes().hex() + ids))
        if message.round == self._dies_at:
            print(json.dumps(self.sent), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


class TableParts(FileCheckpoints):
    """The tool's own checkpoints, and by round the keys that they gave."""

    keys: dict[int, bytes]

    def first_noise_key(self, device):
        key = super().first_noise_key(device)
        self.keys = {} if self.takes_up() else {0: key}
        return key

    def noise_key(self, round_, device):
        key = super().noise_key(round_, device)
        assert self.keys.setdefault(round_, key) == key
        with (self.path.parent / "keys.txt").open("a") as file:  # what no file of the tool may do
            file.write(f"{round_} {key.hex()}\n")
        return key


class Told(OneKey):
    """Gives the keys that another run had, and keeps nothing."""

    def __init__(self, keys):
        self._keys = keys

    def first_noise_key(self, device):
        return self._keys[0]

    def noise_key(self, round_, device):
        return self._keys[round_]


def trained(case, folder, *, dies_at=None, resume=False):
    transcript = Transcript(dies_at)
    checkpoints = TableParts(Path(folder), "k", resume=resume)
    done = train(
        data(),
        config_of(case),
        seed=3,
        replicas=(0, 2),
        observers=(transcript,),
        evaluate_epochs=True,
        checkpoints=checkpoints,
        noise_from="os",
    )
    return transcript.sent, done, checkpoints


def killed(case, folder, dies_at):
    """What a process sent until it was killed in round `dies_at`."""
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nfrom tests.mechanisms.core import test_noise_keys as t\n"
    code += f"t.trained({case!r}, {str(folder)!r}, dies_at={dies_at})"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [tuple(message) for message in json.loads(done.stdout)]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("case", "dies_at"),
    [
        ("a scalar channel and a dp-sgd server", 2 * ROUNDS + 4),
        ("embeddings, the first table among them", 3),
        ("gradients", ROUNDS + 6),
        ("batches and directions that are secret", 2 * ROUNDS + 3),
    ],
)
def test_after_a_kill_rounds_run_again_release_the_same_and_all_ends_as_if_uninterrupted(case, dies_at, tmp_path):
    before = killed(case, tmp_path, dies_at)
    begun = dies_at // ROUNDS * ROUNDS  # the first round that no checkpoint holds
    (kept,) = tmp_path.glob("*.noise-key")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    after, resumed, checkpoints = trained(case, tmp_path, resume=True)
    again = [message for message in before if message[0] >= begun or begun == 0]
    assert again
    assert after[: len(again)] == again
    assert len({message[2] for message in again}) > 3  # they say something, and not all the same
    # By the keys of both processes, a run that nobody interrupts sends and learns the same.
    lines = [line.split() for line in (tmp_path / "keys.txt").read_text().splitlines()]
    keys = {int(round_): bytes.fromhex(key) for round_, key in lines}
    assert sorted(keys) == [ROUNDS * epoch for epoch in range(5)]
    assert len(set(keys.values())) == 5
    transcript = Transcript()
    common = {"seed": 3, "replicas": (0, 2), "evaluate_epochs": True, "noise_from": "os"}
    whole = train(data(), config_of(case), observers=(transcript,), checkpoints=Told(keys), **common)
    assert [message for message in before if message not in again] + after == transcript.sent
    assert same_models(resumed, whole)
    assert resumed.history == whole.history
    assert resumed.secret_noise
    assert resumed.secret_draws == whole.secret_draws
    (tmp_path / "keys.txt").unlink()
    checkpoints.remove()
    assert not tmp_path.exists()


def test_with_a_fresh_key_the_same_rounds_would_release_other_values(tmp_path):
    """What the test above is for: a process that takes up the rounds and not their key."""
    runs = [trained("a server that steps by the scalars", tmp_path / name)[0] for name in ("one", "another")]
    scalars = [[value for _, kind, value in sent if kind == "scalar"][:5] for sent in runs]
    assert not set(scalars[0]) & set(scalars[1])


@pytest.fixture
def file(tmp_path):
    return NoiseKeyFile(tmp_path / "k.noise-key", resume=True)


def begun(file, resume=True):
    return NoiseKeyFile(file.path, resume=resume).begin("cpu", checkpoint=file.path.with_name("k.safetensors"))


def test_a_key_is_kept_for_its_rounds_and_overwritten_for_the_next(file):
    first = begun(file)
    assert len(SecretBits(first).key) == 32
    assert first == begun(file) == file.key_from(0, "cpu")
    assert first.hex() in file.path.read_text()
    with file.path.open("rb") as old:
        second = file.key_from(7, "cpu")
        assert second != first
        assert second == file.key_from(7, "cpu") == begun(file)
        assert first.hex() not in file.path.read_text()
        content = old.read()
        assert set(content) == {0}  # the file that held the first key, which has no name now
    with file.path.open("rb") as old:
        file.destroy()
        assert set(old.read()) == {0}
    assert not file.path.exists()
    file.destroy()


@pytest.mark.parametrize("stack", ["", "-0-2"])
def test_what_a_kill_left_half_written_goes_with_the_run(tmp_path, stack):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    unfinished = [folder / f".k{stack}{suffix}.0123abcd.partial" for suffix in (".safetensors", ".noise-key")]
    for path in unfinished:
        path.write_bytes(b"the key and the state after some rounds")
    others = folder / ".other.safetensors.0123abcd.partial"
    others.write_bytes(b"of a run that may still be going on")
    with unfinished[1].open("rb") as key:
        FileCheckpoints(folder, "k", resume=True).remove()
        assert set(key.read()) == {0}
    assert list(folder.iterdir()) == [others]
    others.unlink()
    FileCheckpoints(folder, "k", resume=True).remove()
    assert not folder.exists()


def test_without_resume_the_old_rounds_cannot_be_taken_up_under_the_new_key(file):
    first = begun(file)
    checkpoint = file.path.with_name("k.safetensors")
    checkpoint.write_bytes(b"the state after some rounds")
    assert begun(file, resume=False) != first
    assert not checkpoint.exists()


def test_a_key_that_is_gone_or_of_later_rounds_is_refused(file):
    checkpoint = file.path.with_name("k.safetensors")
    checkpoint.write_bytes(b"the state after 7 rounds")
    begun(file)
    with refused("would be released a second time with other noise; start without resume"):
        file.key_from(7, "cpu")
    checkpoint.unlink()
    begun(file)
    file.key_from(14, "cpu")
    with refused("is gone"):
        file.key_from(7, "cpu")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 40, None])
def test_a_damaged_key_is_one_line(content, file):
    begun(file)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole.replace(b'"round": 0', b'"round": 7') if content is None else content)
    with refused("is damaged"):
        begun(file)


def test_the_same_noise_is_not_used_where_arithmetic_differs(file, monkeypatch):
    begun(file)
    here = checkpoints.arithmetic("cpu")
    monkeypatch.setattr(checkpoints, "arithmetic", lambda device: here | {"threads": 64, "torch": "9.9"})
    with refused(r"was interrupted with .*threads.*, here it is threads 64, torch 9\.9"):
        file.key_from(0, "cpu")
    assert file.key_from(7, "cpu") == file.key_from(7, "cpu")  # the next rounds have not been run anywhere


def test_arithmetic_is_that_of_this_tool_and_on_cuda_of_its_libraries(file, monkeypatch):
    begun(file)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    plain, facts = checkpoints.arithmetic("cpu"), checkpoints.arithmetic("cuda:0")
    assert plain["dpzv-audit"] == metadata.version("dpzv-audit")
    assert set(facts) - set(plain) == {"CUDA", "cuDNN", "TF32 products", "TF32 cuDNN"}
    for switches, name in ((torch.backends.cuda.matmul, "TF32 products"), (torch.backends.cudnn, "TF32 cuDNN")):
        before = switches.allow_tf32
        switches.allow_tf32 = not before
        try:
            assert checkpoints.arithmetic("cuda:0") == facts | {name: not before}
        finally:
            switches.allow_tf32 = before
    ours = {"dpzv-audit": "0.0.0"}
    monkeypatch.setattr(checkpoints, "version_of", lambda package: ours.get(package) or version_of(package))
    with refused(r"was interrupted with dpzv-audit .*, here it is dpzv-audit 0\.0\.0"):
        file.key_from(0, "cpu")


def test_checkpoints_that_keep_no_keys_are_refused():
    class Plain:
        def load(self, run):
            return []

        def save(self, run, history):
            pass

    with pytest.raises(ValueError, match="keep no keys"):
        train(data(), config_of("gradients"), seed=0, checkpoints=Plain(), noise_from="os")
