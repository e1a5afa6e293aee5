"""The claims file: what a valid one says, and the one line that every kind of mistake gets."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.toml import LARGEST_FILE, bare_text, key_lines, longest_key
from dpzv_audit.claims.file import (
    AttackClaim,
    MechanismClaim,
    MethodClaim,
    ScoreFilesClaim,
    claims_schema,
    load_claims,
    parse_claims,
    skeleton,
)

from ...helpers import refusals
from ...helpers.places import toml_beside
from ...helpers.refusals import refused

FILE = """\
[defaults]
delta = 1e-4
alpha = 0.01

[[claim]]
name = "DPZV on digits, one curious client"
method = "dpzv"
epsilon = 1.0
[claim.config]            # anything the method's config takes
batch_size = 64

[[claim]]
name = "our own system"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 2.0
delta = 1e-5

[[claim]]
name = "labels stay hidden from a curious client"
kind = "attack"
method = "vafl"
attack = "label_direct"
success_at_most = 0.15

[[claim]]
name = "our own mechanism"
mechanism = "our_pkg.vfl:build"
epsilon = 2.0
"""


def parsed(text=FILE):
    return parse_claims(text, Path("claims.toml"))


def refusal(text):
    line = refusals.refusal(parsed, text)
    assert len(line) < 600
    return line


def told(text):
    """What the parser says of `text`: nothing where it is valid; anything but an `InputError` fails the test."""
    try:
        parsed(text)
    except InputError as error:
        return str(error)
    return ""


def test_the_four_forms_with_defaults_and_lines():
    file = parsed()
    assert file.alpha == 0.01
    method, scores, attack, mechanism = (placed.claim for placed in file.claims)
    assert isinstance(method, MethodClaim)
    assert (method.epsilon, method.delta, method.dataset, method.config) == (1.0, 1e-4, "digits", {"batch_size": 64})
    assert isinstance(scores, ScoreFilesClaim)
    assert (scores.scores.in_, scores.scores.out, scores.delta) == ("in.csv", "out.csv", 1e-5)
    assert isinstance(attack, AttackClaim)
    assert (attack.attack, attack.success_at_most, attack.adversary) == ("label_direct", 0.15, "client")
    assert isinstance(mechanism, MechanismClaim)
    assert mechanism.mechanism == "our_pkg.vfl:build"
    assert [placed.line for placed in file.claims] == [5, 12, 18, 25]
    assert file.claims[0].line_of("epsilon") == 8
    assert file.claims[0].line_of("delta") == 5, "a key that a default gave stands where the claim does"


def test_config_of_the_defaults_is_overridden_key_by_key():
    text = FILE.replace("alpha = 0.01", "alpha = 0.01\n[defaults.config]\nepochs = 3\nbatch_size = 16")
    assert parsed(text).claims[0].claim.config == {"epochs": 3, "batch_size": 64}


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    toml_beside(__file__, "file_mistakes.toml")["mistakes"],
)
def test_a_mistake_is_one_line_with_its_place(old, new, line, says):
    assert old in FILE
    line_told = refusal(FILE.replace(old, new, 1))
    assert line_told.startswith(f"claims.toml:{line}: "), line_told
    assert says in line_told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no [[claim]]"),
        ("claim = 3", "array of tables"),
        ("claim = [1]", "array of tables"),
        ("[[claim]]\nname = ", "is not valid TOML"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "9" * 5000, "is not valid TOML"),
        ("a = " + "{a=" * 2000, "nested too deeply"),
        ("\x00", "is not valid TOML"),
        ("[[claim]]\nname = 'x'\nepsilon = 1\nmethod = 'dpzv'\n[claim.config]\na" + ".a" * 3000 + " = 1", ""),
    ],
)
def test_what_is_no_claims_file_gets_one_line(text, says):
    assert says in told(text)


def test_files_that_cannot_be_read(tmp_path):
    big, binary = tmp_path / "big.toml", tmp_path / "binary.toml"
    big.write_bytes(b"# " + b"x" * (10_000_000))
    binary.write_bytes(b"\xff\xfe")
    for path, says in (
        (big, f"larger than {LARGEST_FILE:,} bytes"),
        (binary, "byte 1 is not UTF-8"),
        (tmp_path, "is a folder; use a regular file"),
        (tmp_path / "none.toml", "cannot be read"),
        (Path("a\x00b"), "is no name that a file can have"),
    ):
        with refused(says):
            load_claims(path)


def test_a_name_with_markup_is_text_like_any_other():
    assert parsed(FILE.replace("our own system", "<script>alert(1)</script>")).claims[1].name.startswith("<script>")


def test_the_digest_depends_on_everything_but_name_and_source():
    first = parsed().claims[0].digest()
    assert parsed(FILE.replace("DPZV on digits, one curious client", "other")).claims[0].digest() == first
    assert parsed("\n" + FILE).claims[0].digest() == first
    for old, new in (("epsilon = 1.0", "epsilon = 1.5"), ("batch_size = 64", "batch_size = 32"), ("1e-4", "1e-6")):
        assert parsed(FILE.replace(old, new, 1)).claims[0].digest() != first


def test_only_keeps_the_named_claims_and_knows_the_nearest_name():
    assert [placed.name for placed in parsed().only(["our own system"]).claims] == ["our own system"]
    with refused("did you mean 'our own system'"):
        parsed().only(["our own sistem"])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_text_at_all_breaks_the_parser(text):
    assert "\n" not in told(text)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if value is None:
        return '""'
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["name", "epsilon", "delta", "scores", "config", "method", "adversary", "kind", "mechanism"]),
    _VALUES,
)
def test_no_value_of_any_key_breaks_the_parser(key, value):
    base = {"name": '"n"', "method": '"dpzv"', "epsilon": "1.0"}
    text = "[[claim]]\n" + "\n".join(f"{k} = {v}" for k, v in {**base, key: _toml(value)}.items())
    assert "\n" not in told(text)


def test_lines_of_dotted_keys_strings_and_comments():
    text = (
        'a.b = 1\ns = """\n[x]\ny = 2\n"""\n# [z]\nl = [\n 1, # ]\n 2]\n'
        '[t]\n"q r" = 1\n[[u]]\nv = 1\n[[u]]\nv = 2\n[u.w]\nx = 1\n'
    )
    lines = key_lines(text)
    assert lines[("a",)] == lines[("a", "b")] == 1
    assert lines[("s",)] == 2
    assert lines[("l",)] == 7
    assert lines[("t", "q r")] == 11
    assert (lines[("u", 0, "v")], lines[("u", 1, "v")], lines[("u", 1, "w", "x")]) == (13, 15, 17)
    assert ("x",) not in lines
    assert ("z",) not in lines


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a = 1", 1),
        ("a.b.c = 1.5", 3),
        ('[a."b.c.d"]\n', 2),
        ("a = [1.5, 2.5, 3.5, 4.5]", 2),
        ("a = { b.c.d.e = 1 }", 4),
        ('a = "x.y.z.w"', 1),
        ("# a.b.c.d\n\"a\" . 'b' . c = 1", 3),
    ],
)
def test_the_longest_key_is_told_without_parsing(text, parts):
    assert longest_key(bare_text(text)) == parts


def test_the_schema_is_json_and_names_every_key_of_every_form():
    schema = json.loads(json.dumps(claims_schema()))
    text = json.dumps(schema)
    for key in ("success_at_most", "mechanism", "scores", "in", "alpha", "adversary", "neighbours"):
        assert f'"{key}"' in text
    for reference in schema["properties"]["claim"]["items"]["anyOf"]:
        definition = schema["$defs"][reference["$ref"].rsplit("/", 1)[1]]
        assert definition["additionalProperties"] is False
        assert "name" in definition["required"]


ALIKE = {
    "Cyrillic": ("сlаim", "claim"),
    "Greek": ("ΑΒ", "AB"),
    "Armenian": ("օ", "o"),
    "Cherokee": ("Ꭺ", "A"),
    "Lisu": ("ꓮ", "A"),
    "Arabic, written from right to left": ("١", "l"),
    "mathematical": ("𝐜𝗅𝒂im", "claim"),
    "a Roman numeral": ("ⅽ", "c"),
    "two letters for one": ("modern", "modem"),
    "a minus sign": ("a−b", "a-b"),
    "another space": ("a\u2009b", "a b"),
    "a long s": ("ſ", "f"),
    "a power, not in the table": ("x²", "x2"),
    "a Cyrillic letter with a mark": ("ӑ", "ă"),
    "a mark for another": ("Ő", "Ö"),
    "a character that is not drawn": ("c\ufe0f", "c"),
}


@pytest.mark.parametrize("what", ALIKE)
def test_names_that_look_alike_by_the_table_of_unicode_have_one_skeleton(what):
    one, other = ALIKE[what]
    assert one != other
    assert skeleton(one) == skeleton(other) == skeleton(skeleton(one))


def test_names_that_readers_tell_apart_have_skeletons_of_their_own():
    names = [
        "claim a",
        "claim b",
        "claim-a",
        "claim_a",
        "Claim a",
        "claim 2",
        "claim 3",
        "clàim a",
        "données",
        "donnees",
    ]
    assert len({skeleton(name) for name in names}) == len(names)


def test_all_that_the_table_lists_is_alike_but_for_pointed_letters_that_unicode_takes_apart():
    from confusable_homoglyphs.confusables import confusables_data

    pairs = [(one, other["c"]) for one, others in confusables_data.items() for other in others]
    missed = [pair for pair in pairs if len({skeleton(text.strip("\u200e")) for text in pair}) > 1]
    assert len(pairs) > 12_000
    assert len(missed) <= 10
