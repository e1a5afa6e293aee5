"""Fills in, when the site is built, what the code knows better than a page: a method's settings, what there is."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import PydanticUndefined

from mechanisms import METHODS


def settings(name: str) -> str:
    """Every setting of the method `name` as a Markdown table, with this method's default."""
    method = METHODS[name]
    lines = ["| setting | default | what |", "|---|---|---|"]
    for key, field in method.config.model_fields.items():
        default = method.defaults.get(key, field.get_default(call_default_factory=True))
        shown = "required" if default is PydanticUndefined else f"`{default}`"
        lines.append(f"| `{key}` | {shown} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def methods() -> str:
    """All methods, with what the server sends down."""
    lines = ["| method | what it is | the server answers with |", "|---|---|---|"]
    lines += [
        f"| [{name}]({name}.md) | {method.summary} | {method.downlink} |" for name, method in sorted(METHODS.items())
    ]
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    markdown = re.sub(r"<!-- settings of ([\w-]+) -->", lambda found: settings(found[1]), markdown)
    return markdown.replace("<!-- methods -->", methods())
