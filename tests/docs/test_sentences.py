"""Sentences that users read are short, and free of the words that make them hard.

They are those of the README, the pages that explain and those that show how, the templates, the help, and the strings
of the code. A text that `LEFT` names may have as many hard sentences as it says, and no more.
"""

import ast
import re
import tomllib

import pytest

from ..helpers.commands import every_command
from ..helpers.places import ROOT
from ..helpers.shipped import MODULES, tree_of

LONG = 30
"""Words past which a sentence is long."""
SHARE = 0.05
"""Largest share of long sentences."""
TELL_TALE = {
    r"needs? no attack|without any attack|there is without": "say baseline",
    r"[Ww]hoever|[Nn]obody|[Nn]o one\b": "name the party",
    r"\bof (?:its|their) own\b": "say separate, or own before the noun",
    r"\bof (?:yours|ours|theirs)\b": "say your",
    r"^(?:Of|Beside|Against whom) (?!course)(?!.*\?)": "begin with the subject",
    r"\bso (?:many|few)\b": "give the number",
    r"\bby records\b": "say across records",
    r"\b[Pp]ilots?\b": "say trial run",
    r"tell of others|\bof others\b.*\btold\b": "say generalise",
    r"\btold\b": "say known, stated or distinguished",
    r"\bcan see\b": "say detection limit",
    r"\b(?:[Ee]ach|[Bb]oth|[Ee]ither|[Tt]wo|neighbouring) worlds?\b": "say neighbouring data sets",
    r"\b[Dd]amage\b": "say what the attack finds",
    r"\b(?:is|are) none\b|\bto be had\b|\badds? nothing\b|\bis nobody\b": "state it directly",
    r"\bno finite number\b": "say not finite",
    r"[:;]\s.*[:;]\s": "make two sentences",
    r"\bmust be\b(?! (?:at chance|\d))": "say use",
}
"""Patterns that make a sentence hard, each with what to do."""
NOT_IN_CODE = (r"[:;]\s.*[:;]\s",)
"""Patterns that messages of errors may have, which begin with a place and a colon."""
ALLOWED = (
    "files: X/XX source: X",  # labels of a listing
    "X across X ; single trainings X ; mean of further trainings X",  # what stands in brackets
    "**pilot**: a trial run that chooses a threshold or an attack, and is not counted.",  # defines a word of the guides
    "**damage**: how far an attack's success lies between its baseline (0) and a perfect attack (1).",  # so does this
)
LEFT = {  # of code, the word damage, by which cells of a matrix are ordered: a key of result.json too
    "code": (0, 9),
}
"""Long sentences and tell-tale ones that are left in a text, both to be lowered only."""

FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$", re.DOTALL | re.MULTILINE)
END = re.compile(r"(?<=[^\s.][.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!cf\.)(?<!al\.)[)\"”*_]*\s+")
BRANCH = re.compile(r"\{%-?\s*if\b[^%]*%\}((?:(?!\{%-?\s*(?:if|endif)\b).)*)\{%-?\s*endif\s*-?%\}", re.DOTALL)


def of_markdown(text):
    """Return the paragraphs, list items and cells of a page, without its code blocks, comments and marks."""
    text = re.sub(r"<!--.*?-->|<style.*?</style>|</?\w[^>]*>", " ", FENCE.sub("\n\n", text), flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*(?:[-*+]|\d+\.|#+|>|!!! \w+|\?\?\? \w+) ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\|[-:| ]+\|$", "", text, flags=re.MULTILINE)
    rows = [line.replace("|", "\n\n") if line.startswith("|") else line for line in text.splitlines()]
    return re.split(r"\n\s*\n", "\n".join(rows))


def prose(text):
    """Return how many words of a page are prose: neither code, nor cells of a table, nor what a picture shows."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("|"))
    return sum(map(words, of_markdown(re.sub(r"!\[[^\]]*\]\([^)]*\)", "", "\n".join(lines)))))


def of_template(text):
    """Return the text of a template: of branches the longest, then the others alone; an expression is a word."""
    text = re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "X", text, flags=re.DOTALL)
    others = []
    while match := BRANCH.search(text):
        longest, *rest = sorted(re.split(r"\{%-?\s*(?:else|elif)\b[^%]*%\}", match[1]), key=len, reverse=True)
        others += rest
        text = text[: match.start()] + longest + text[match.end() :]
    return re.sub(r"\{%.*?%\}", "\n\n", "\n\n".join((text, *others)), flags=re.DOTALL)


def sentences(blocks):
    """Return the sentences of blocks of text that have four words; code in backticks is one word."""
    texts = (" ".join(re.sub(r"`[^`]*`", "`code`", block).split()) for block in blocks)
    parts = [sentence for text in texts for sentence in END.split(text)]
    parts = [sentence for sentence in parts if sentence.count("=") < 2]  # a formula is no sentence
    return [sentence for sentence in parts if words(sentence) >= 4 and sentence not in ALLOWED]


def words(sentence):
    """Return the number of words of a sentence."""
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def literal(node):
    """Return the text of a string in the code, in which an expression is a word; None for anything else."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(literal(value) or "X" for value in values)
    return None


def strings(tree):
    """Return the strings of a module that are no docstrings and no part of another."""
    inner = set()
    for node in ast.walk(tree):
        inner |= {id(part) for part in ast.iter_child_nodes(node) if isinstance(node, ast.JoinedStr | ast.Expr)}
    return [text for node in ast.walk(tree) if id(node) not in inner and (text := literal(node))]


def of_help(command):
    """Return the help of a command and of its options; an example is no sentence."""
    texts = re.split(r"\n\s*\n", command.help)
    texts += [param.help for param in command.params if getattr(param, "help", None)]
    return [text for text in texts if not text.startswith("Example:")]


def read(pattern):
    return [path.read_text("utf-8") for path in sorted(ROOT.glob(pattern))]


def of_code():
    # Failed assertions of the contract for plug-ins are for their authors.
    names = [name for name in MODULES if not name.startswith("dpzv_audit/testing/")]
    texts = [text for name in names for text in strings(tree_of(name))]
    for text in read("dpzv_audit/accounting/gaps.toml"):
        texts += map(str, tomllib.loads(text).values())
    return [text for text in texts if "\n" not in text]


TEMPLATES = [
    f"{folder}/**/templates/*.{kind}" for folder in ("dpzv_audit", "reports") for kind in ("jinja", "md", "html")
]
HOW_TO = ("guide/*", "ci", "data", "security")
TEXTS = {
    "readme": lambda: [block for page in read("README.md") for block in of_markdown(page)],
    "understand": lambda: [block for page in read("docs/understand/*.md") for block in of_markdown(page)],
    "how-to": lambda: [block for name in HOW_TO for page in read(f"docs/{name}.md") for block in of_markdown(page)],
    "attacks": lambda: [
        block
        for pattern in ("docs/attacks/*.md", "docs/results/attack-figures*.md")
        for page in read(pattern)
        for block in of_markdown(page)
    ],
    "reference": lambda: [
        block for names in ("index", "reference/*") for page in read(f"docs/{names}.md") for block in of_markdown(page)
    ],
    "glossary": lambda: [block for page in read("docs/glossary.md") for block in of_markdown(page)],
    "templates": lambda: [
        block for kind in TEMPLATES for text in read(kind) for block in of_markdown(of_template(text))
    ],
    "help": lambda: [text for _, command, _ in every_command() for text in of_help(command)],
    "code": of_code,
}


def test_the_readme_has_1500_words_with_its_code_at_most():
    (page,) = read("README.md")
    assert len(page.split()) <= 1500


def of_site():
    """Return the Markdown of each page of the site by its path; a page that the navigation lacks fails the build."""
    nav = read("mkdocs.yml")[0].partition("\nnav:\n")[2]
    return {name: (ROOT / "docs" / name).read_text("utf-8") for name in re.findall(r"[\w/-]+\.md", nav)}


SITE = of_site()
MEASURED = [name for name in SITE if name.startswith(("results/", "found/"))]


def test_the_site_has_60_pages_and_50000_words_at_most_without_those_of_what_was_measured():
    counted = {name: len(text.split()) for name, text in SITE.items() if name not in MEASURED}
    assert 30 < len(counted) <= 60
    assert sum(counted.values()) <= 50_000


@pytest.mark.parametrize("name", MEASURED)
def test_a_page_of_what_was_measured_has_600_words_of_prose_at_most(name):
    assert prose(SITE[name]) <= 600


def long(text):
    return [sentence for sentence in text if words(sentence) > LONG]


def tell_tale(text, without=()):
    """Return the sentences that match a pattern, each behind what to do."""
    hits = []
    for pattern, cure in TELL_TALE.items():
        if pattern not in without:
            hits += [f"{cure}: {sentence}" for sentence in text if re.search(pattern, sentence)]
    return hits


@pytest.mark.parametrize("name", TEXTS)
def test_one_sentence_in_twenty_is_long_at_most(name):
    text = sentences(TEXTS[name]())
    assert len(text) >= 50
    hits = long(text)
    assert len(hits) <= max(SHARE * len(text), LEFT.get(name, (0, 0))[0]), "\n".join(hits)


def test_one_sentence_in_twenty_of_the_site_is_long_at_most():
    text = sentences(block for page in SITE.values() for block in of_markdown(page))
    assert len(long(text)) <= SHARE * len(text), "\n".join(long(text))


@pytest.mark.parametrize("name", TEXTS)
def test_no_sentence_has_words_that_make_it_hard(name):
    hits = tell_tale(sentences(TEXTS[name]()), NOT_IN_CODE if name == "code" else ())
    assert len(hits) <= LEFT.get(name, (0, 0))[1], "\n".join(hits)


PLANTED = (
    "It finds more than what needs no attack.",
    "The label is known to whoever looks at it.",
    "The system states a release of its own.",
    "Give a training of yours to the command.",
    "Of 4 the one that finds most is taken.",
    "The smallest p-value among so many is one.",
    "The rate by records is 9.1 per cent.",
    "The client was chosen in a pilot.",
    "4 trainings are too few to tell of others.",
    "The two labels cannot be told apart here.",
    "The column says what a test can see.",
    "The runs go on in each world.",
    "The attack with the most damage is first.",
    "Where there is none, the column is empty.",
    "The loss is no finite number at the end.",
    "It stops: the noise is known; the bound: none here.",
    "The epsilon must be a number above 0.",
)
"""A bad sentence for each pattern, in their order."""


@pytest.mark.parametrize(("pattern", "sentence"), [*zip(TELL_TALE, PLANTED, strict=True)])
def test_a_planted_sentence_is_caught_by_its_pattern_alone(pattern, sentence):
    assert sentences([sentence]) == [sentence]
    assert [known for known in TELL_TALE if re.search(known, sentence)] == [pattern]


def test_prose_is_counted_without_code_tables_and_pictures():
    page = "# A head\n\nThree more words, [one linked](page.md).\n\n| a | b |\n|---|---|\n| c | d |\n"
    assert prose(f"{page}\n![bars of words](x.svg)\n\n```sh\nls words\n```\n\n<!-- no words -->") == 7


def test_long_sentences_are_caught_wherever_they_stand():
    many = " ".join(["word"] * 30)
    cells = f"| a | {many} `two words` |\n|---|---|\n"
    page = f"# Head\n\n- {many} end. Short one is here.\n\n{cells}\n```text\n{many} {many}\n```\n"
    assert [words(sentence) for sentence in sentences(of_markdown(page))] == [31, 4, 31]
    template = "{% if a %}" + many + "{% elif b %}few words{% else %}nobody knows these words{% endif %} and {{ x }}."
    assert [words(sentence) for sentence in sentences(of_markdown(of_template(template)))] == [32, 4]
    code = ast.parse(f'"""{many} module."""\nraise InputError(f"{many} {{len(x)}} is nobody", "field")\n')
    assert [words(sentence) for sentence in sentences(strings(code))] == [33]
    assert len(long(sentences([f"{many}.", f"{many} more."]))) == 1
