"""Options of commands from a TOML file: the same run as by flags, and every mistake one line."""

import pytest

from dpzv_audit.cli.config import PAIR
from dpzv_audit.cli.flags import GIVEN, option_of

from ...helpers.commands import every_command

COMMANDS = {" ".join(words): (command, context) for words, command, context in every_command()}
VALUES = {"integer": ("3", "3"), "float": ("1e-3", "1e-3"), "boolean": ("true", None)}


def every_option(command):
    """Return the file that gives a command all its options and arguments, and the words that give the same."""
    lines, tables, first, words = [], [], [], []
    for one in command.params:
        key = option_of(one.opts[0]).replace("_", "-")
        written, spelled = VALUES.get(one.type.name, ('"a b"', "a b"))
        if key == "config":
            continue
        if one.param_type_name == "argument":
            number = max(1, one.nargs)
            lines.append(f"{key} = [{', '.join([written] * number)}]" if one.nargs != 1 else f"{key} = {written}")
            first += [spelled] * number
        elif one.metavar == PAIR:
            tables.append(f'[{key}]\nrate = 1e-2\nwide = true\nname = "word"\ncount = "5"\ndeep.er = [1, 2]')
            for pair in ("rate=1e-2", "wide=true", "name=word", 'count="5"', "deep.er=[1, 2]"):
                words += [one.opts[0], pair]
        else:
            lines.append(f"{key} = [{written}, {written}]" if one.multiple else f"{key} = {written}")
            for _ in range(2 if one.multiple else 1):
                words += [one.opts[0]] if spelled is None else [one.opts[0], spelled]
    in_order = [word for word in words if word is not None]
    return "\n".join((*lines, *tables)), [*first, *in_order]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command_may_stand_in_a_file(name, tmp_path):
    command, context = COMMANDS[name]
    text, words = every_option(command)
    file = tmp_path / "all.toml"
    file.write_text(text)

    def parsed(*arguments):
        GIVEN.set(("dpzv-audit", *name.split(), *arguments))
        return command.make_context(name.split()[-1], [*arguments], parent=context).params, sorted(GIVEN.get())

    by_file, given = parsed("--config", str(file))
    by_flags, wanted = parsed(*words)
    assert by_file == by_flags
    assert given == wanted  # what a result records
    assert any(by_file.values())


@pytest.fixture
def ran(tmp_path, cli):
    """Runs a command with an output folder of its own; returns the bytes of its result."""

    def run(name, line):
        out = tmp_path / name
        assert cli(f"{line} --quiet --out {out}").code == 0
        (result,) = out.glob("*/result.json")
        return result.read_bytes()

    return run


def test_a_run_by_a_file_is_the_run_by_its_flags(tmp_path, ran):
    file = tmp_path / "options.toml"
    file.write_text(
        'method = "split"\nepochs = 1\nseed = 9\n[train]\nno-controls = true\nbatch_size = 1_00\n'
        "[train.set]\nclient_rate = 1e-2\n[attack]\nno_option = 1\n"
    )
    by_file = ran("file", f"train --config {file} --seed 0")
    flags = "--method split --epochs 1 --no-controls --batch-size 100 --set client_rate=1e-2"
    assert by_file == ran("flags", f"train {flags} --seed 0")


@pytest.mark.parametrize(
    ("file", "flags", "wanted"),
    [
        ('defence = ["max-norm", "label-rr"]', "--defence marvell", "--defence marvell"),
        ("[set]\nmomentum = 0.5\nclip = 3", "--set momentum=0.9", "--set clip=3 --set momentum=0.9"),
        ("clip = 3", "--max-grad-norm 2", "--max-grad-norm 2"),
        ("[set]\nepochs = 3", "--epochs 2", "--epochs 2"),
        ("epochs = 3", "--set epochs=2", "--set epochs=2"),
        ("[set]\nclip = 1\n[train]\nset.clip = 2\nset.momentum = 0", "", "--set clip=2 --set momentum=0"),
        ("resume = false", "", ""),
    ],
)
def test_the_command_line_wins_over_its_file(file, flags, wanted, tmp_path):
    path = tmp_path / "options.toml"
    path.write_text(file)
    command, context = COMMANDS["train"]
    given = f"--config {path} {flags}".split()
    GIVEN.set(tuple(given))
    command.make_context("train", given, parent=context)
    assert " ".join(GIVEN.get()) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nepoch = 3", "F:2: unknown key epoch, did you mean epochs?"),
        ("qqq = 3", "F:1: unknown key qqq; use an option of attack, see dpzv-audit attack --help"),
        ("[atack]\nepochs = 3", "F:1: unknown key atack, did you mean attack?"),
        ('epochs = "ten"', "F:1: epochs is 'ten'; use a whole number"),
        ("epochs = 2.50", "F:1: epochs is 2.50; use a whole number"),
        ("epochs = true", "F:1: epochs is true; use a whole number"),
        ("epsilon = [1.0]", "F:1: epsilon is [1.0]; use a number"),
        ("resume = 1", "F:1: resume is 1; use true or false"),
        ("method = 1", "F:1: method is 1; use text in quotes"),
        ("[method]\nname = 1", "F:1: method is a table; use text in quotes"),
        ("client = ['a']", "F:1: client is 'a'; use a whole number, or a list of such"),
        ("set = 1", "F:1: set is 1; use a table, or text such as 'KEY=VALUE', or a list of such"),
        (
            "[set]\nclip = 2020-01-01",
            "F:1: clip is 2020-01-01; use a number, text, true, false or a list",
        ),
        ("batch-size = 1\nbatch_size = 2", "F:2: batch_size and batch-size are one option; give it once"),
        ("epochs = ", "F: is not valid TOML: Invalid value (at end of document)"),
        ("\nepochs = 0", "--epochs is 0; use a whole number of at least 1 (--epochs stands in F:2)"),
        ("[set]\nmomentum = 'x'", "--set momentum is 'x'; use a number (--set momentum stands in F:1)"),
        (
            "dataset = 'digits'\ncsv = 'a.csv'",
            "--dataset does not go with --csv FILE, give one of them (--dataset stands in F:1)",
        ),
        (None, "--config is 'F', which cannot be read (No such file or directory); use a readable TOML file"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(text, says, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "F").write_text(text)
    assert cli.refusal("attack --config F") == f"dpzv-audit: error: {says}"


def test_two_files_are_refused_and_help_reads_none(cli):
    assert (
        cli.refusal("train --config a.toml --config=b.toml")
        == "dpzv-audit: error: --config is given 2 times; give it once"
    )
    assert cli("train --config a.toml --help").code == 0


def test_arguments_may_stand_in_the_file_of_a_command(tmp_path, cli):
    (tmp_path / "list.toml").write_text('[list]\nwhat = "methods"\njson = true\n')
    assert "dpzv" in str(cli(f"list --config {tmp_path}/list.toml").json)
