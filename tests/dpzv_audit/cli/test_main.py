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
