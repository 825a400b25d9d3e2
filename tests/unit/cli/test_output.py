"""What commands print: lines, tables, confirmations and exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from topicberg.cli.output import Yes, cell, complain, confirm, echo, exit_if, print_table, warn
from topicberg.errors import TopicbergError


def test_lines_of_a_command_go_to_their_streams(capsys: pytest.CaptureFixture[str]) -> None:
    echo("one\x1b")
    echo(f"line {number}" for number in (1, 2))
    warn(["noted", "twice"])
    complain("wrong")
    shown = capsys.readouterr()
    assert shown.out == "one\\x1b\nline 1\nline 2\n"
    assert shown.err.splitlines() == ["noted", "twice", "wrong"]


def test_table_in_a_pipe_has_whole_cells_and_aligned_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[Sequence[str | Text]] = [(cell("[red]" + "x" * 300), "5"), ("a", "12")]
    print_table((cell("name"), "rows"), rows, right=[1])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split() for line in lines] == [
        ["name", "rows"],
        ["[red]" + "x" * 300, "5"],
        ["a", "12"],
    ]
    assert len({len(line) for line in lines}) == 1, "the numbers end in one column"


def test_exit_code_of_a_command_says_whether_what_it_reports_is_a_failure() -> None:
    exit_if([])
    with pytest.raises(typer.Exit) as ended:
        exit_if(["a table"], 2)
    assert ended.value.exit_code == 2


def test_confirmation_that_is_declined_ends_the_command() -> None:
    app = typer.Typer()

    @app.command()
    def drop(yes: Yes = False) -> None:
        confirm("Delete it?", yes=yes)
        echo("deleted")

    assert "deleted" in CliRunner().invoke(app, ["--yes"]).output
    declined = CliRunner().invoke(app, input="n\n")
    assert (declined.exit_code, "deleted" in declined.output) == (1, False)
    assert "Aborted" in declined.output


def test_confirmation_without_an_answer_says_how_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    with pytest.raises(TopicbergError) as refused:
        confirm("Delete it?", yes=False)
    assert str(refused.value).startswith("Delete it? The input ended before an answer")
    assert "--yes" in (refused.value.hint or "")
