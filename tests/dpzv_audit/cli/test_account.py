import importlib
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.accounting import ACCOUNTANTS, GAPS
from dpzv_audit.accounting.gaps import LISTED
from dpzv_audit.base.errors import AuditError
from dpzv_audit.cli import account as command

from ...helpers.places import ROOT, read_json, toml_beside

BASE = "--batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10"
CLAIM = BASE + " --epsilon 1 --delta 1e-3"


@pytest.fixture
def run(cli, monkeypatch):
    """Runs the command with some flags."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda flags: cli(f"account {flags}")


@pytest.fixture
def answer(cli):
    """The JSON object of the command."""
    return lambda flags: cli.answer(f"account {flags}")


@pytest.fixture
def refusal(cli):
    """The line with which the command is refused."""
    return lambda flags: cli.refusal(f"account {flags}")


def test_json_is_the_contract(answer):
    found = answer(CLAIM + " --adversary client --neighbours replace-label")
    assert set(found) == {"release", "bounds"}
    assert found["release"]["sigma"] == pytest.approx(0.1859, abs=5e-5)
    assert [b["accountant"] for b in found["bounds"]] == list(ACCOUNTANTS)
    for bound in found["bounds"]:
        assert {"accountant", "adversary", "neighbours", "epsilon", "sound", "gap"} <= set(bound)
        assert bound["adversary"] == "client"
        assert bound["epsilon"] is None or set(bound["epsilon"]) == {"lower", "estimate", "upper"}
    by_name = {b["accountant"]: b for b in found["bounds"]}
    assert by_name["gdp-exact"]["epsilon"]["upper"] == pytest.approx(60.95, abs=0.005)
    assert by_name["gdp-exact"]["sound"] is True
    assert by_name["gdp-paper"]["epsilon"]["estimate"] == pytest.approx(1.0)
    assert (by_name["gdp-paper"]["sound"], by_name["gdp-paper"]["gap"]) == (False, "known-ids")


def test_all_is_every_adversary_and_relation(answer):
    found = answer(BASE + " --sigma 0.2")
    assert len(found["bounds"]) == len(LISTED) * 4 * len(ACCOUNTANTS)
    assert found["bounds"] == answer(BASE + " --sigma 0.2 --adversary all --neighbours all")["bounds"]


def test_table_marks_sound_gap_and_tightest(run):
    result = run(CLAIM + " --sampler poisson --padded --server-update joint-zo --neighbours replace-label --verbose")
    assert result.code == 0
    assert result.out.startswith("Release: 46900 scalars, B = 128 of D = 60000 (poisson)")
    heads = [line.split("┃")[2:-1] for line in result.out.splitlines() if line.startswith("┃ ")]
    alike = [[cell.strip() for cell in column if cell.strip()] for column in zip(*heads, strict=True)]
    assert alike == [["client", "colluding-clients", "all-but-one"], ["eavesdropper", "release"]]
    rows = {line.split()[1]: line.split("│")[2:-1] for line in result.out.splitlines() if line.startswith("│ ")}
    rows = {name: [cell.strip() for cell in cells] for name, cells in rows.items()}
    assert rows["gdp-paper"] == ["(1) known-ids", "(1) clt"]
    assert rows["gdp-exact"] == ["64.12 sound *", "64.12 sound"]
    assert rows["prv"][0] == "(1.007) known-ids"
    assert re.fullmatch(r"1\.0\d+ sound \*", rows["prv"][1])
    assert "malicious-client: - unbounded-participation" in result.out
    assert "server: - unprotected-channel" in result.out
    assert "gdp-clt, czofo-theorem: - no-accountant" in result.out
    given = "sound: given that the server's parameters move by the released scalars alone; --explain lists what else"
    assert given in result.out
    explained = set(re.findall(r"^([a-z-]+): [^-]", result.out, flags=re.MULTILINE)) - {"sound"}
    assert explained == {"known-ids", "clt", "no-accountant", "unbounded-participation", "unprotected-channel"}
    assert explained <= set(GAPS)


def test_the_table_fits_in_eighty_columns(run, monkeypatch):
    # words are never cut, whatever the width
    monkeypatch.setenv("COLUMNS", "80")
    text = run(CLAIM + " --sampler poisson --server-update sgd --fast --verbose").out
    table = [line for line in text.splitlines() if line[:1] in "┃│"]
    assert max(map(len, table)) <= 80
    assert "…" not in text
    for word in ("colluding-clients", "eavesdropper", "advanced-composition", "known-ids,", "server-state"):
        assert any(word in line for line in table), word


def test_a_printed_bound_is_never_rounded_down(run, answer):
    found = answer(CLAIM + " --adversary client --neighbours replace-label")["bounds"]
    (exact,) = [b["epsilon"]["upper"] for b in found if b["accountant"] == "gdp-exact"]
    assert (
        f" {math.ceil(100 * exact) / 100:.4g} sound *"
        in run(CLAIM + " --adversary client --neighbours replace-label --verbose").out
    )


def test_all_contradicts_a_name(answer, refusal):
    assert answer(BASE + " --sigma 0.2 --all --fast") == answer(BASE + " --sigma 0.2 --fast")
    for flags in (" --adversary client", " --neighbours zero-out"):
        assert "--all asks for every" in refusal(BASE + " --sigma 1 --all" + flags)


def test_noise_multiplier_is_sigma_over_the_sensitivity(answer, refusal):
    sizes = "--batch-size 128 --dataset-size 60000 --rounds 46900 --adversary client --delta 1e-3"
    for relation in ("replace-label", "zero-out"):
        found = answer(f"{sizes} --noise-multiplier 1.1895 --neighbours {relation}")
        exact = next(b for b in found["bounds"] if b["accountant"] == "gdp-exact")
        assert exact["epsilon"]["upper"] == pytest.approx(60.95, abs=0.01)
    wrong = refusal(f"{sizes} --noise-multiplier 1")
    assert "--noise-multiplier is 1.0" in wrong
    assert "name one relation with --neighbours" in wrong


def test_method_gives_what_its_numbers_give(answer):
    found = answer("--method dpzv --dataset-size 1408 --clients 4 --adversary client --neighbours replace-label --fast")
    made = found["release"]
    assert (made["batch_size"], made["rounds"], made["clients"], made["server_update"]) == (64, 176, 4, "sgd")
    by_hand = answer(
        "--batch-size 64 --dataset-size 1408 --rounds 176 --clip 10 --epsilon 1 --clients 4 --participations 8 "
        "--server-update sgd --adversary client --neighbours replace-label --fast"
    )
    assert found["bounds"] == by_hand["bounds"]
    sound = answer("--method dpzv-sound --dataset-size 1408 --clients 4 --adversary client --neighbours replace-label")
    exact = next(b for b in sound["bounds"] if b["accountant"] == "gdp-exact")
    assert exact["sound"]
    assert exact["epsilon"]["upper"] == pytest.approx(1.0)


def test_method_accounts_for_dp_sgd_with_random_batches(answer):
    flags = "--method dpzv --dataset-size 1408 --clients 4 --adversary client --neighbours replace-label"
    options = " --set server_update=dp-sgd --set server_noise_multiplier=8 --set sampler=poisson"
    assert next(b for b in answer(flags + options)["bounds"] if b["accountant"] == "gdp-exact")["sound"]


def test_several_releases_compose(answer, refusal):
    flags = BASE + " --sigma 0.2 --adversary client --neighbours replace-label"
    found = answer(flags + " --also rounds=468,sigma=2 --also channel=embedding,sigma=300")
    assert len(found["release"]["parts"]) == 3
    exact = {b["accountant"]: b for b in found["bounds"]}["gdp-exact"]
    alone = {b["accountant"]: b for b in answer(flags)["bounds"]}["gdp-exact"]
    assert exact["mu"] > alone["mu"]
    error = refusal(flags + " --participations 101 --also rounds=468")
    assert "is a different schedule from the one with 101 participations: add participations=N" in error
    assert answer(flags + " --participations 101 --also rounds=468,participations=1")
    error = refusal(flags + " --also rounds")
    assert "--also is 'rounds'; use KEY=VALUE" in error
    assert "did you mean 'rounds'" in refusal(flags + " --also round=3")


def test_schedule_is_read(tmp_path, answer, refusal):
    path = tmp_path / "batches.npy"
    np.save(path, np.array([[0, 1], [1, 2], [1, 3]]))
    flags = "--batch-size 2 --dataset-size 4 --rounds 3 --clip 1 --sigma 5 --adversary client --neighbours zero-out"
    assert answer(f"{flags} --schedule {path}")["release"]["participations"] == 3
    assert "say the same" in refusal(f"{flags} --schedule {path} --participations 3")
    (tmp_path / "text.npy").write_text("0 1")
    assert "has no complete NPY header" in refusal(f"{flags} --schedule {tmp_path}/text.npy")


def test_explain_puts_the_numbers_in(run, answer):
    result = run(CLAIM + " --adversary client --neighbours replace-label --explain")
    assert "mu = 2 C sqrt(T) / (D sigma) = 2 x 10 x sqrt(46900) / (60000 x 0.18" in result.out
    assert "source: DPZV paper (001), theorem 5.1" in result.out
    found = answer(CLAIM + " --adversary client --neighbours replace-label --explain")
    assert any("assumes: NOT met, known-ids" in line for line in found["explanations"])


def test_formulas_with_brackets_are_printed_as_they_are(run):
    sampled = CLAIM + " --sampler poisson --server-update joint-zo --adversary client --neighbours replace-label"
    assert "E[e^(s L)]" in run(sampled + " --explain --fast").out


def test_out_writes_result_and_figures_whole(tmp_path, monkeypatch, run, cli):
    flags = CLAIM + f" --server-update joint-zo --neighbours replace-label --fast --out {tmp_path}"
    folder = Path(run(flags + " --quiet").out.strip())
    names = {"result.json", "environment.json", "report.html", "report.md", "epsilon-rounds.svg", "trade-off.svg"}
    assert {p.name for p in folder.iterdir()} == names | {"figure-epsilon.svg"}
    stored = read_json(folder / "result.json")
    assert stored["schema"] == "dpzv-audit/account/1"
    lines = stored["figures"]["rounds"]
    assert lines["theorem 5.1, as claimed"][-1] == [46_900, pytest.approx(1.0)]
    (known,) = [points for name, points in lines.items() if "colluding-clients" in name]
    assert known[-1] == [46_900, pytest.approx(60.95, abs=0.01)]
    assert [t for t, _ in known] == sorted(t for t, _ in known)
    for name in ("epsilon-rounds.svg", "trade-off.svg"):
        drawing = (folder / name).read_text()
        assert drawing.startswith("<svg")
        assert "theorem 5.1, as claimed" in drawing

    def fail(*args, **kwargs):
        raise AuditError("the disk is full")

    monkeypatch.setattr("dpzv_audit.runs.RunFolder.write", fail)
    before = sorted(tmp_path.iterdir())
    assert "the disk is full" in cli.refusal(f"account {flags}", code=3)
    assert sorted(tmp_path.iterdir()) == before


def page(run, tmp_path, flags):
    """Return the report in words that `account` with `flags` writes, and its result."""
    folder = Path(run(f"{flags} --quiet --out {tmp_path}").out.strip())
    return (folder / "report.md").read_text(), read_json(folder / "result.json")


@pytest.mark.parametrize(
    ("flags", "word", "not_proven", "step"),
    [
        (
            f"{CLAIM} --fast --server-update joint-zo",
            "**Overclaimed: ε ≤ 1",
            "malicious-client and server (gaps: unbounded-participation and unprotected-channel)",
            f"dpzv-audit calibrate {BASE} --server-update joint-zo --epsilon=1 --delta=0.001 --adversary=client "
            "--neighbours=replace-label",
        ),
        (
            f"{BASE} --fast --sigma 4.2 --delta 1e-3 --server-update joint-zo --adversary client",
            "**Bounded: ε ≤ ",
            None,
            "dpzv-audit audit system our_vfl:train",
        ),
        (
            f"{BASE} --fast --sigma 4.2 --adversary server --neighbours zero-out",
            "**No sound bound: ε against the server, one record blanked out.**",
            None,
            None,
        ),
        (
            "--method dpzv --dataset-size 1408 --clients 4 --fast",
            "**Overclaimed: ε ≤ 1",
            "colluding-clients",
            "dpzv-audit account --method dpzv-sound",
        ),
        (
            "--method dpzv-sound --dataset-size 1408",
            "**Supported: ε ≤ 1",
            "server",
            "dpzv-audit audit method dpzv-sound",
        ),
    ],
)
def test_the_page_says_what_is_proven_what_is_not_and_what_to_do(flags, word, not_proven, step, run, tmp_path):
    text, _ = page(run, tmp_path, flags)
    head = text.partition("\n## ")[0]
    assert word in head
    assert "Not tested: " in head
    assert ("Not proven: any ε against " in head) == (not_proven is not None)
    assert not_proven is None or not_proven in head
    assert ("**What to do next.**" in head) == (step is not None)
    assert step is None or f"```sh\n{step}\n```" in head


def test_the_step_of_an_overclaimed_page_runs_and_finds_noise(run, tmp_path, cli):
    text, _ = page(run, tmp_path, f"{CLAIM} --fast --server-update joint-zo --explain --neighbours replace-label")
    command = re.search(r"```sh\ndpzv-audit (calibrate .*)\n```", text)[1]
    assert cli.answer(command)["calibration"]["reached"]


def test_a_composition_claims_no_epsilon_of_one_of_its_channels(run, tmp_path):
    flags = f"{CLAIM} --fast --server-update joint-zo --adversary client --neighbours replace-label --also sigma=300"
    _, stored = page(run, tmp_path, flags)
    assert stored["privacy"]["claimed"] is None
    assert len(stored["sentences"]) == 2


def test_labels_that_a_defence_privatises_have_a_page_too(run, tmp_path):
    text, stored = page(run, tmp_path, "--defence label-rr --defence-set epsilon=2")
    assert "**Bounded: ε ≤ 2 at δ = 1e-05 against one curious client, one label changed.**" in text
    assert "dpzv-audit audit defence label-rr" in text
    assert stored["release"]["epsilon"] == 2.0


def test_a_page_is_drawn_again_from_its_result(run, tmp_path, cli):
    folder = Path(run(f"{CLAIM} --fast --quiet --out {tmp_path}").out.strip())
    before = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert cli(f"report {folder}").code == 0
    assert (folder / "report.html").read_bytes() == before


def test_quiet_leaves_the_tightest_sound_bounds_a_line_each(run, answer):
    flags = f"{CLAIM} --server-update joint-zo --neighbours replace-label"
    bounds = [b for b in answer(flags)["bounds"] if b["sound"] and b["adversary"] == "client"]
    best = min(bounds, key=lambda b: b["epsilon"]["upper"])
    lines = run(f"{flags} --quiet").out.splitlines()
    assert len(lines) >= 2
    (client,) = [line for line in lines if "against client" in line]
    said = re.fullmatch(r"replace-label, against [a-z, -]+: epsilon <= ([\d.]+) \((.*)\)", client)
    assert said is not None
    assert best["epsilon"]["upper"] * (1 - 1e-9) <= float(said[1]) <= best["epsilon"]["upper"] * 1.001
    assert said[2] == best["accountant"]
    assert any(line.endswith("server: no sound bound on epsilon (unprotected-channel)") for line in lines)


def test_the_page_of_all_cases_is_what_the_command_prints(run, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    hooks = importlib.import_module("hooks")
    built = hooks.on_page_markdown((ROOT / "docs" / "accounting-table.md").read_text("utf-8"))
    heading, _, printed = run("--table").out.partition("\n")
    assert built.startswith(f"{heading}\n")
    assert printed.strip() in built
    for adversary in LISTED:
        assert f"`{adversary}`" in printed
    assert "undefined" in printed
    assert "no bound" in printed


def test_add_remove_needs_a_public_rate_and_says_why(run):
    common = "--rounds 1000000 --clip 1 --sigma 1.25 --delta 1e-5 --sampler poisson --server-update frozen"
    common += " --neighbours add-remove --verbose"
    follows = run(f"--batch-size 16 --dataset-size 1600 {common} --adversary release").out
    assert "sound" not in follows.replace("tightest sound bound", "")
    assert "undefined: removing a record moves every other record's rate B/D" in follows
    public = run(f"--batch-size 16 --sample-rate 0.01 {common}").out
    assert "public rate 0.01 (poisson), divisor B = 16" in public
    assert "2.002 sound *" in public  # of the release; an eavesdropper needs messages of one length
    assert "(2.002) batch-size" in public
    padded = run(f"--batch-size 16 --sample-rate 0.01 --padded {common} --adversary eavesdropper").out
    assert "2.002 sound *" in padded
    # without a divisor the message is a sum: the same noise against a contribution 16 times as large
    assert "2.002 sound *" in run(f"--sample-rate 0.01 {common.replace('1.25', '20')} --adversary release").out


def test_the_papers_theorem_has_no_gap_where_every_batch_holds_all_records(run):
    common = "--rounds 100 --clip 1 --epsilon 1 --delta 1e-5 --neighbours replace-label --adversary client --verbose"
    whole = run(f"--batch-size 600 --dataset-size 600 {common} --server-update joint-zo").out
    assert re.search(r"gdp-paper +│ 1 sound", whole)
    opened = run(f"--batch-size 600 --dataset-size 600 {common} --server-update sgd").out
    assert re.search(r"gdp-paper +│ \(1\) server-state", opened)


def test_server_state_is_named(answer):
    found = answer(CLAIM + " --server-update sgd --adversary client --neighbours replace-label")
    assert not any(bound["sound"] for bound in found["bounds"])
    assert found["bounds"][2]["gap"] == "server-state"


def test_malicious_client_with_cap(answer):
    flags = CLAIM + " --adversary malicious-client --neighbours zero-out"
    assert all(b["epsilon"] is None for b in answer(flags)["bounds"])
    found = answer(flags + " --participation-cap 101 --distinct-ids")
    assert [b["accountant"] for b in found["bounds"] if b["sound"]] == [
        "gdp-exact",
        "prv",
        "rdp",
        "advanced-composition",
    ]


def test_example_of_the_help_runs_as_printed(run):
    name, sub, *arguments = shlex.split(" ".join(command.account.__doc__.split("Example:")[1].split()))
    assert (name, sub) == ("dpzv-audit", "account")
    assert run(shlex.join([*arguments, "--neighbours", "replace-label"])).code == 0


WRONG = toml_beside(__file__, "wrong_account_flags.toml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(f"{sizes} {flags}", says) for sizes, wrong in WRONG.items() for flags, says in wrong.items()],
)
def test_wrong_flags_are_one_line(arguments, says, refusal):
    assert says in refusal(arguments)


def test_a_setting_that_contradicts_a_flag_is_refused_where_the_sizes_are_given(run, refusal):
    sizes = "--method dpzv --dataset-size 1000 --set sigma=0.2"
    assert refusal(f"{sizes} --sigma 0.1") == "dpzv-audit: error: --set sigma=0.2 contradicts --sigma, give one of them"
    assert run(sizes).code == 0


def test_what_the_server_spends_by_itself_is_named_for_what_it_is(run):
    sizes = "--batch-size 64 --dataset-size 1408 --rounds 176 --clip 1 --sigma 0.5"
    ask = "--server-update dp-sgd --server-mu 0.7 --adversary client --neighbours replace-label --explain"
    said = " ".join(run(f"{sizes} {ask}").out.split())
    assert "mu_0 = 0.7 (the server's own updates)" in said
    assert "0 messages" not in said


def test_bounds_of_private_labels_stand_beside_those_of_the_noise_where_both_hold(run, answer):
    own = "--method dpzv-sound --epsilon 1 --adversary client --neighbours replace-label --dataset-size 1000"
    both = answer(f"{own} --defence label-rr --defence-set epsilon=2")["bounds"]
    assert {bound["accountant"] for bound in both} > {"label-dp", "gdp-exact"}
    assert min(bound["epsilon"]["upper"] for bound in both if bound["sound"]) == pytest.approx(1.0)
    alone = answer(f"{own} --defence label-cluster --defence-set epsilon=2")["bounds"]
    assert [bound["accountant"] for bound in alone] == ["label-dp"]
    assert "Noise of dpzv-sound is not counted" in run(f"{own} --defence label-cluster").out
    (one,) = answer("--defence label-one-shot --defence-set epsilon=0.5 --adversary client --neighbours replace-label")[
        "bounds"
    ]
    assert (one["epsilon"]["upper"], one["delta"]) == (0.5, 1e-5)
