"""Every block of shell and Python in the documents runs, or a comment above it says why not.

    <!-- run by tests/FILE.py -->    the suite runs these commands there, perhaps on smaller data
    <!-- not run: REASON -->

Without such a comment, it is run here.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner
from lightning.fabric import Fabric
from markdown_it import MarkdownIt
from programs import trials
from service_process import ServiceProcess
from zeus_service.cli import main as zeus_service_command

from zeus_lightning import ZeusPowerLimitCallback
from zeus_lightning.cli import main as zeus_lightning_command

ROOT = Path(__file__).parents[2]
PROGRAMS = {"zeus-service": zeus_service_command, "zeus-lightning": zeus_lightning_command}


class Block(NamedTuple):
    """A block of code; `comment` is the HTML comment above it."""

    path: str
    line: int
    language: str
    text: str
    comment: str

    @property
    def is_run_here(self) -> bool:
        return not self.comment.startswith(("run by ", "not run: "))

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block, without variables that it sets."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"\w+=|export$|sudo$", words[0]):
                words.pop(0)
            if words:
                yield words


def blocks_of(path: Path) -> Iterator[Block]:
    comment = ""
    for token in MarkdownIt().parse(path.read_text()):
        if token.type == "fence" and token.info in ("sh", "python"):
            line = (token.map or [0])[0] + 1
            name = path.relative_to(ROOT).as_posix()
            yield Block(name, line, token.info, token.content, comment)
        html = token.type == "html_block"
        comment = token.content.strip().removeprefix("<!--").removesuffix("-->").strip() * html


BLOCKS = [
    block
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md", "deploy/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    for block in blocks_of(path)
]


def each(blocks: list[Block]) -> Any:
    return pytest.mark.parametrize("block", blocks, ids=[f"{b.path}:{b.line}" for b in blocks])


def execute(block: Block, url: str, names: dict[str, Any]) -> None:
    """Run a block of Python, with the line numbers of its document."""
    text = "\n" * block.line + block.text.replace("http://127.0.0.1:8765", url)
    exec(compile(text, ROOT / block.path, "exec"), names)


class Documented(NamedTuple):
    """The service of the documents, with the README's job, and the names that it defines."""

    service: ServiceProcess
    names: dict[str, Any]


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documented]:
    folder = tmp_path_factory.mktemp("documented")
    names: dict[str, Any] = {"ZeusPowerLimitCallback": ZeusPowerLimitCallback}
    first = next(block for block in BLOCKS if block.language == "python")
    with ServiceProcess(folder) as service, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ZEUS_JOB_ID", "my-nightly-job")  # else by the folder and script of pytest
        execute(first, service.url, names)
        yield Documented(service, names)


def test_the_program_of_the_readme_trains_to_its_own_end(documented: Documented) -> None:
    (trial,) = trials(documented.service.url, "my-nightly-job")
    assert (trial["outcome"], trial["why"], trial["batch_size"]) == ("completed", "baseline", 256)


@each([block for block in BLOCKS if block.is_run_here and block.language == "python"][1:])
def test_a_block_of_python_runs(
    block: Block, documented: Documented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEUS_SERVER_URL", documented.service.url)
    monkeypatch.setenv("ZEUS_JOB_ID", f"{Path(block.path).stem}-{block.line}")
    data = documented.names["train_set"]
    names = {**documented.names, "url": documented.service.url, "data": data}
    names |= {
        "fabric": Fabric(accelerator="cpu", devices=1),
        "train": len,
        "validate": lambda: 0.96,
    }
    execute(block, documented.service.url, names)


@each([block for block in BLOCKS if block.is_run_here and block.language == "sh"])
def test_a_block_of_shell_runs(
    block: Block, documented: Documented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which takes a tenth of the time; without the variables that it sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEUS_BSO_DATABASE_URL", documented.service.database_url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for program, *arguments in block.commands():
        arguments = [each.replace("http://HOST:8765", documented.service.url) for each in arguments]
        result = CliRunner().invoke(PROGRAMS[program], arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output


@each([block for block in BLOCKS if not block.is_run_here])
def test_a_block_that_is_not_run_here_is_valid_and_has_its_reason(block: Block) -> None:
    if block.comment.startswith("run by "):
        for name in block.comment.removeprefix("run by ").split(", "):
            assert (ROOT / name).is_file(), name
    else:
        assert len(block.comment.split()) > 3
    if block.language == "python":
        compile(block.text, block.path, "exec")
    else:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)


@each([block for block in BLOCKS if block.language == "sh"])
def test_the_arguments_of_our_programs_are_known(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # parsing opens the files that a command would write
    for words in block.commands():
        if words[0] in PROGRAMS:
            parse(PROGRAMS[words[0]], words)
        for position, word in enumerate(words):
            if word.startswith("examples/") and "ArgumentParser(" in (ROOT / word).read_text():
                parse_script(ROOT / word, words[position + 1 :], monkeypatch)


class Parsed(Exception):
    """A script has parsed its arguments."""


def parse_script(script: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_args(parser: argparse.ArgumentParser) -> None:
        _, unknown = parser.parse_known_args()
        raise Parsed(unknown)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(Parsed) as parsed:
        runpy.run_path(str(script), run_name="__main__")
    assert parsed.value.args == ([],)


def parse(command: click.Command, words: list[str]) -> None:
    """Parse what follows the name of a command; a wrong option or value is an error."""
    # click keeps the names of the help option that a command is first parsed with
    context = command.make_context(words[0], words[1:], help_option_names=["-h", "--help"])
    if isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, words[1:])
        assert found is not None
        parse(found, [words[1], *rest])
