"""What MkDocs calls to make the site: see mkdocs.yml."""

from __future__ import annotations

import html
import inspect
import re
from pathlib import Path
from typing import Any

from griffe import Docstring
from latex2mathml.converter import convert
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files
from pydantic_core import PydanticUndefined
from zeus_service import create_app
from zeus_service.config import Config

ROOT = Path(__file__).parents[1]

PAGES = ("*.md", "docs/*.md", "examples/**/*.md", "deploy/**/*.md", "benchmarks/*.md")

LINKED = (
    "LICENSE",
    "CITATION.cff",
    "Dockerfile",
    ".env.example",
    "compose*.yaml",
    "docs/figures/*",
    "examples/**/*.py",
    "examples/**/*.ipynb",
    "benchmarks/*.py",
    "deploy/**/*.yaml",
    "deploy/**/*.yml",
    "deploy/**/*.json",
    "deploy/**/*.sbatch",
    "examples/Dockerfile",
    "service/zeus_service/bandit/*.py",
)
"""What pages link to and show, and what is no page."""


def on_files(files: Files, config: Any) -> Files:
    """Take pages from all over the repository, at their own paths, where their links are right."""
    paths = {path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern)}
    return Files(
        [
            File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
            for path in sorted(paths)
        ]
        + [file for file in files if file.src_dir != config.docs_dir]  # the theme's, the plugins'
    )


def on_page_content(content: str, **_: Any) -> str:
    """Write formulas as MathML, which browsers show without a script."""
    return re.sub(
        r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>',
        lambda found: convert(
            html.unescape(found[2]), display="block" if found[1] == "div" else "inline"
        ),
        content,
        flags=re.DOTALL,
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add what is generated from the code."""
    if page.file.src_uri == "docs/http-fields.md":
        return markdown + api_fields()
    return markdown.replace("<!-- the table of settings: docs/mkdocs_hooks.py -->", settings())


def settings() -> str:
    """The fields of `Config`, with what its docstring says about each, as a table."""
    sections = Docstring(inspect.getdoc(Config) or "", parser="google").parse(warnings=False)
    [parameters] = [each.value for each in sections if each.kind == "parameters"]
    rows = []
    for each in parameters:
        default = Config.model_fields[each.name].default
        given = "" if default in (None, "", PydanticUndefined) else f"`{default}`"
        meaning = " ".join(each.description.split())
        rows.append(f"| `ZEUS_BSO_{each.name.upper()}` | {given} | {meaning} |")
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])


def api_fields() -> str:
    """The requests and models of `/openapi.json` as Markdown."""
    app = create_app(Config(database_url="sqlite:////nowhere/zeus.sqlite3"))
    with app.app_context():
        spec = app.spec
    lines = ["\n## Requests\n"]
    for path, methods in spec["paths"].items():
        for method, request in methods.items():
            lines += [f"\n### `{method.upper()} {path}`\n", request["summary"], ""]
            body = request.get("requestBody")
            answers = {
                code: each for code, each in request["responses"].items() if code != "default"
            }
            rows = [("body", _type(_schema(body)))] if body else []
            rows += [
                (f"`{each['name']}`, {each['in']}", _type(each["schema"]))
                for each in request.get("parameters", ())
            ]
            answers = request["responses"].items()
            rows += [(code, _type(_schema(each))) for code, each in answers if code != "default"]
            lines += ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]
    lines.append("\n## Models\n")
    for name, model in spec["components"]["schemas"].items():
        if "properties" not in model:
            continue
        needed = model.get("required", ())
        about = model.get("description", "").partition("\n\n")[0]
        lines += [f"\n### {name}\n", about, "", "| field | value | |", "| --- | --- | --- |"]
        lines += [
            f"| `{field}` | {_type(each)} | {'required' if field in needed else ''} |"
            for field, each in model["properties"].items()
        ]
    return "\n".join(lines)


def _schema(message: dict[str, Any]) -> dict[str, Any]:
    """What a request's or response's body must match; empty if it has none."""
    return next(iter(message.get("content", {"": {}}).values())).get("schema", {})


def _type(schema: dict[str, Any]) -> str:
    """A value's type with its limits, and links to the models in it."""
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{slugify(name, '-')})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    limits = (
        f"{name} {schema[key]:g}"
        for key, name in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
        )
        if key in schema
    )
    return ", ".join([schema.get("type", "any value"), *limits])
