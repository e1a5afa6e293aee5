"""Fills in, when the site is built, what the code or a printed example knows better than a page."""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined

# MkDocs imports this file with its folder on the path, where docs/attacks would be taken for the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from blocks import ROOT, Block, blocks, commands

from attacks import ATTACKS
from dpzv_audit.accounting.explain import table_markdown
from dpzv_audit.cli import app
from dpzv_audit.cli.commands import HELP, every_command, option_panels
from dpzv_audit.cli.flags import GIVEN
from dpzv_audit.data import DATASETS
from mechanisms import METHODS
from mechanisms.defences import DEFENCES, defence_of

PRINTED = ROOT / "docs" / "printed"
CAPTION = re.compile(r"^Attacks(?:, \d+ trainings?)?(?=  )", re.MULTILINE)
BOOSTS = {
    "reference/index": 1,
    "reference/python": 0.1,
    "reference/schemas": 0.25,
    "reference/claims-file": 0.25,
    **dict.fromkeys(("reference/", "results/", "found", "findings", "accounting-table"), 0.5),
    **dict.fromkeys(("architecture", "benchmarks", "mutation"), 0.5),
}
"""What the search multiplies scores by, by how the path of a page begins: other pages with the word come first."""


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|")


def folded(title: str, text: str) -> str:
    """Return Markdown that shows `title`, and `text` when a reader opens it."""
    return f'??? note "{title}"\n\n' + "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def printed(name: str) -> Block:
    """Return the first console block of the page of printed examples called `name`."""
    found = [block for page in PRINTED.glob(f"*/{name}.md") for block in blocks(page) if block.language == "console"]
    if not found:
        raise ValueError(f"<!-- figures of {name} -->: no page docs/printed/*/{name}.md has a console block")
    return found[0]


def figures(name: str) -> str:
    """Return the command of the printed example `name`, and what it found: as a table where it mounts attacks."""
    text = printed(name).text
    asked = commands(text)
    output = text.partition("$ " + asked[-1].replace("\n", "\n> ") + "\n")[2]
    subject, *parts = [part for part in re.split(r"\n\s*\n", output.partition("\nNext: ")[0]) if part.strip()]
    shown = "```sh\n" + "\n".join(asked) + "\n```\n\n"
    table = next((part for part in parts if CAPTION.search(part)), None)
    if table is None:
        return f"{shown}```text\n{output.partition('Next: ')[0].partition('Report: ')[0].strip()}\n```"
    warnings = re.findall(r"^  (Warning: .*?\.)$", output, flags=re.DOTALL | re.MULTILINE)
    attacks, checks = table.split("\nChecks: ")
    words = [*subject.splitlines(), *warnings, "Checks:", checks]
    return f"{shown}{columns(attacks)}\n\n" + " ".join(" ".join(words).split())


def columns(text: str) -> str:
    """Return a terminal's table of attacks, whose headings have several lines, as a Markdown table."""
    caption = CAPTION.search(text)
    assert caption is not None
    place = text.count("\n", 0, caption.start()) + 1
    heading, rows = text.splitlines()[:place], text.splitlines()[place:]
    ends = [found.end() for found in re.finditer(r"\S+(?: \S+)*", rows[0])][1:3]
    starts = [len(caption[0]), ends[0]]
    names = [
        " ".join(" ".join(line[start:end] for line in heading).split()) for start, end in zip(starts, ends, strict=True)
    ]
    lines = [[caption[0], *names, ""], ["---"] * 4]
    lines += [[*re.split(r" {2,}", row.strip()), ""][:4] for row in rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def settings(name: str) -> str:
    """Every setting of the method or defence `name` as a Markdown table, with its default."""
    if name in METHODS:
        fields, defaults = METHODS[name].config.model_fields, METHODS[name].defaults
    else:
        fields, defaults = dict(DEFENCES[name].settings.model_fields), {}
        del fields["name"]
    lines = ["| setting | default | what |", "|---|---|---|"]
    for key, field in fields.items():
        default = defaults.get(key, field.get_default(call_default_factory=True))
        shown = "required" if default is PydanticUndefined else f"`{default}`"
        said = field.description or ""
        if get_origin(field.annotation) is Literal:
            said += f" One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."
        lines.append(f"| `{key}` | {shown} | {cell(said)} |")
    return "\n".join(lines)


def methods() -> str:
    """All methods, with what the server sends down."""
    lines = ["| method | what it is | the server answers with |", "|---|---|---|"]
    lines += [
        f"| [{name}](#{name}) | {method.summary} | {method.downlink} |" for name, method in sorted(METHODS.items())
    ]
    return "\n".join(lines)


def defences() -> str:
    """All defences, with what they change and what they promise."""
    lines = ["| defence | changes | how | promises for each label |", "|---|---|---|---|"]
    for name, spec in DEFENCES.items():
        defence = defence_of(name)
        release = defence.releases()
        promise = "nothing" if release is None else "(epsilon, delta)" if release.delta else "(epsilon, 0)"
        lines.append(f"| [{name}](#{name}) | {defence.place.rstrip('s')}s | {cell(spec.summary)} | {promise} |")
    return "\n".join(lines)


def keys(values: Mapping[str, object]) -> str:
    """Keys and values as code."""
    return ", ".join(f"`{key}={value}`" for key, value in values.items()) or "none"


def attack(name: str) -> str:
    """What the specification of the attack `name` says, as a Markdown table."""
    spec = ATTACKS[name]
    rows = {
        "adversary": " or ".join(f"`{one}`" for one in spec.adversaries),
        "options (`--attack-set`)": keys(spec.setup.options),
        "queries a batch (`--queries`)": str(spec.setup.queries),
        "trains with": keys(spec.needs.requires) + (f": {spec.needs.requires_because}" if spec.needs.requires else ""),
        "unless you say otherwise": keys(spec.needs.suggests),
        "positive control": spec.goal.positive.what,
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {cell(value)} |" for key, value in rows.items())])


def attacks() -> str:
    """All attacks, with who mounts them."""
    lines = ["| attack | adversary | what it finds |", "|---|---|---|"]
    lines += [
        f"| [{name}](#{name}) | {', '.join(spec.adversaries)} | {cell(spec.summary)} |"
        for name, spec in ATTACKS.items()
    ]
    return "\n".join(lines)


def datasets() -> str:
    """All built-in data sets, with their partitions and files."""
    lines = ["| data set | what it is | partition: clients, the default first | files |", "|---|---|---|---|"]
    for name, spec in DATASETS.items():
        ways = "; ".join(f"{way}: {one.takes}" for way, one in spec.partitions.items())
        files = f"`{spec.source.folder}/{spec.source.names}`" if spec.source else "none"
        lines.append(f"| `{name}` | {cell(spec.summary)} | {cell(ways)} | {cell(files)} |")
    return "\n".join(lines)


def benchmarks() -> str:
    """What machine the printed benchmarks ran on, how many promises are kept, and a row for each of their sections."""
    lines = ["| section | ratio | promises kept | missed by |", "|---|---|---|---|"]
    section = re.compile(r"^## (.*?)\n\nRatio: (.*?)\n\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
    kept = made = 0
    machines, busy = [], []
    for path in sorted(PRINTED.glob("benchmarks*.md")):
        text = path.read_text("utf-8")
        machines += re.findall(r"^(.*?), 1 threads;", text, re.MULTILINE)
        ((some, of),) = re.findall(r"^(\d+) of (\d+) promises kept", text, re.MULTILINE)
        kept, made = kept + int(some), made + int(of)
        for title, ratio, table in section.findall(text):
            busy += [title] * ("The machine was not idle" in text)
            verdicts = [row.split(" | ")[-1].removesuffix(" |") for row in table.splitlines()[2:]]
            promised = [verdict for verdict in verdicts if verdict != "-"]
            missed = [float(verdict.split()[1]) for verdict in promised if verdict != "kept"]
            count = f"{len(promised) - len(missed)} of {len(promised)}" if promised else "none made"
            most = f"at most {max(missed):.2f} times" if missed else ""
            lines.append(f"| {title} | {cell(ratio.partition('. ')[0].rstrip('.'))} | {count} | {most} |")
    found = f"{kept} of {made} promises of speed and memory are kept, on {'; and on '.join(dict.fromkeys(machines))}."
    if busy:
        found += f" The machine was not idle for: {'; '.join(busy)}."
    return "\n".join([found + "\n", *lines])


def matrix() -> str:
    """The cells of the printed matrix as a table of six columns, success without the reach of its trainings."""
    text = (ROOT / "docs" / "printed" / "matrix.md").read_text("utf-8")
    table = text.partition("\n| attack | method | mounted |")[2].partition("\n\n")[0]
    lines = [
        "| attack, adversary | method | success | baseline | advantage | ε certified |",
        "|---|---|---|---|---|---|",
    ]
    for row in table.splitlines()[2:]:
        attack, method, mounted, advantage, success, baseline, _, certified, _ = (
            each.strip() for each in row.strip("|").split(" | ")
        )
        by = "" if mounted == "–" else f", {mounted}"
        cells = (attack + by, method, success.partition(";")[0], baseline, advantage.removesuffix(" \\!"), certified)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def command_line() -> str:
    """Every command with its help, and with its options by panel, as `--help-all` prints them."""
    top = typer.main.get_command(app)
    lines = []
    given = GIVEN.set(HELP[-1:])
    for words, command, around in every_command(top, typer.Context(top, info_name="dpzv-audit")):
        context = typer.Context(command, info_name=words[-1], parent=around)
        lines += [
            f"## {' '.join(words)}",
            f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```",
        ]
        for paragraph in re.split(r"\n\s*\n", command.help):
            said = " ".join(paragraph.split())
            example = said.removeprefix("Example: ")
            lines.append(escape(said, quote=False) if example == said else f"```sh\n{example}\n```")
        rows = ["| option | what |", "|---|---|"]
        for panel, options in option_panels(command, context).items():
            rows.append(f"| **{panel}** | |")
            rows += [
                f"| `{cell(term)}` | {cell(escape(what, quote=False))} |"
                for term, what in options
                if not term.startswith(HELP[1])
            ]
        lines.append("\n".join(rows))
    GIVEN.reset(given)
    return "\n\n".join(lines)


def bounds() -> str:
    """What `dpzv-audit account --table` prints, without its heading."""
    return table_markdown().partition("\n")[2]


def kind(found: Mapping[str, Any]) -> str:
    """A JSON schema's type in words, with links to the parts that it names."""
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in found:
        return f"`{json.dumps(found['const'])}`"
    if "enum" in found:
        return ", ".join(f"`{json.dumps(one)}`" for one in found["enum"])
    for several in ("anyOf", "oneOf"):
        if several in found:
            return " or ".join(dict.fromkeys(map(kind, found[several])))
    if found.get("type") == "array":
        if "prefixItems" in found:
            return f"list of ({', '.join(map(kind, found['prefixItems']))})"
        return f"list of {kind(found.get('items', {}))}"
    if found.get("type") == "object":
        inner = found.get("additionalProperties")
        return f"object of {kind(inner)}" if isinstance(inner, dict) else "object"
    return str(found.get("type", "anything"))


def part_of_schema(name: str, found: Mapping[str, Any]) -> str:
    """One object of a JSON schema: its sentence and its keys as a Markdown table."""
    lines = [f"### {name}", "", found.get("description", ""), ""]
    if "properties" not in found:
        return "\n".join([*lines, kind(found)])
    lines += ["| key | type | |", "|---|---|---|"]
    required = found.get("required", ())
    for key, value in found["properties"].items():
        said = " ".join(value.get("description", "").split())
        needed = "required. " if key in required and "const" not in value else ""
        default = "const" not in value and value.get("default")
        usual = f" Default: `{json.dumps(default)}`." if default and isinstance(default, str | int | float) else ""
        lines.append(f"| `{key}` | {cell(kind(value))} | {cell(needed + said + usual)} |")
    return "\n".join(lines)


def schema(of: str) -> str:
    """Every object of the JSON schema `of` results, claims files or a transcript's manifest, as the models give it."""
    if of == "results":
        from dpzv_audit.results import REPORTED, schema_of_results

        parts = schema_of_results()["$defs"]
        first = [model.__name__ for model in REPORTED.values()]
    elif of == "claims":
        from dpzv_audit.claims.file import FORMS, Defaults, claims_schema

        parts = claims_schema()["$defs"]
        first = [model.__name__ for model in (*FORMS.values(), Defaults)]
    else:
        from dpzv_audit.systems.transcript import schema_of_transcripts

        whole = schema_of_transcripts()
        parts = {"manifest.json": whole, **whole.get("$defs", {})}
        first = ["manifest.json"]
    assert isinstance(parts, dict)
    return "\n\n".join(part_of_schema(name, parts[name]) for name in [*first, *sorted({*parts} - {*first})])


def of_readme(heading: str) -> str:
    """The section of the README below `heading`, with links as pages in docs have them."""
    text = (ROOT / "README.md").read_text("utf-8")
    (found,) = re.findall(rf"^## {heading}\n.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    return str(found).replace("](docs/", "](")


LISTED = {
    "methods": methods,
    "attacks": attacks,
    "defences": defences,
    "datasets": datasets,
    "commands": command_line,
    "bounds": bounds,
    "matrix": matrix,
    "benchmarks": benchmarks,
}
"""What a comment with this name alone stands for."""


def on_config(config: Any, **_: Any) -> None:
    """Called by mkdocs first: takes version and repository from the package's metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    repository = project["urls"]["Repository"]
    config.site_name = f"{project['name']} {project['version']}"
    config.edit_uri = f"{repository}/edit/main/docs/"
    # As repo_url it would be asked, at every visit, how many stars it has.
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": repository, "name": "Source code"}]


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Called by mkdocs for every page."""
    boost = next((boost for path, boost in BOOSTS.items() if page and page.file.src_uri.startswith(path)), 1)
    if boost != 1:
        page.meta["search"] = {"boost": boost}
    markdown = re.sub(r"<!-- settings of ([\w-]+) -->", lambda found: folded("Settings", settings(found[1])), markdown)
    markdown = re.sub(
        r"<!-- facts of the attack (\w+) -->", lambda found: folded("Settings", attack(found[1])), markdown
    )
    markdown = re.sub(r"<!-- figures of ([\w-]+) -->", lambda found: figures(found[1]), markdown)
    markdown = re.sub(r"<!-- README: ([\w ]+) -->", lambda found: of_readme(found[1]), markdown)
    markdown = re.sub(r"<!-- schema of (\w+) -->", lambda found: schema(found[1]), markdown)
    return re.sub(rf"<!-- ({'|'.join(LISTED)}) -->", lambda found: LISTED[found[1]](), markdown)
