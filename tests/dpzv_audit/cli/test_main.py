import os

import pytest

from dpzv_audit.cli import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("account", "--sigma", "one"), "--sigma is 'one', must be a number"),
        (("calibrate", "--epsilon", "one"), "--epsilon is 'one', must be a number"),
        (("account", "--rounds", "2.5"), "--rounds is '2.5', must be a whole number"),
        (("account", "--clipp", "5"), "No such option: --clipp, did you mean --clip?"),
        (("account", "--batch", "5"), "No such option: --batch, did you mean --batch-size or --batch-coupling?"),
        (("account", "--zzz", "5"), "No such option: --zzz"),
        (("account", "--sigma"), "Option '--sigma' requires an argument."),
        (("acount",), "No such command 'acount'. Did you mean 'account'?"),
    ],
)
def test_a_mistake_of_form_names_what_was_given(arguments, says, capsys):
    assert main(list(arguments)) == 2
    assert capsys.readouterr().err == f"dpzv-audit: error: {says}\n"


def test_summaries_of_the_commands_fit_in_eighty_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(commands) >= 8
    assert [line for line in commands if line.endswith("...")] == []


@pytest.mark.parametrize(("set_by_user", "then"), [(None, "1"), ("3", "3")])
def test_a_process_uses_one_thread_unless_the_user_says_otherwise(monkeypatch, set_by_user, then, capsys):
    if set_by_user is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    assert main(["--version"]) == 0
    assert os.environ["OMP_NUM_THREADS"] == then
