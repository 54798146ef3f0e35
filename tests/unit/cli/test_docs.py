"""`collectx docs`: its list, its names of pages, and what it prints."""

import re
from pathlib import Path

import pytest

from collectx.cli import docs

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """Returns the code of a page's blocks, without what stands behind their opening fences."""
    return [re.sub("```.*", "```", block[0], count=1) for block in BLOCK.finditer(text)]


def test_the_list_has_every_page_of_the_documentation(capsys):
    assert docs.main([]) == 0
    names = re.findall(r"^  (\S+) +\S", capsys.readouterr().out, re.MULTILINE)
    assert names == [name for name in docs.pages() if name != "index"]
    assert len(names) == len({*ROOT.glob("docs/*/*.md")}) >= 56
    assert {"does-not-learn", "tutorials/slurm", "reference/slurm"} <= {*names}


@pytest.mark.parametrize(
    "words",
    [
        ["does-not-learn"],
        ["does", "not", "learn"],
        ["Does-not-learn."],
        ["how-to/does-not-learn"],
        ["docs/how-to/does-not-learn.md"],
        ["../how-to/does-not-learn.md"],
    ],
)
def test_a_page_has_several_names(words, capsys):
    assert docs.main(words) == 0
    assert capsys.readouterr().out.startswith("# Find out why a run does not learn\n")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["resum"], "there is no page 'resum'. Did you mean collectx docs resume? To list all: collectx docs"),
        (["how-to/resum"], "there is no page 'how-to/resum'. Did you mean collectx docs resume?"),
        (["STATUS"], "there is no page 'status'. To list all: collectx docs"),
        (
            ["slurm"],
            "'slurm' names 2 pages. Did you mean collectx docs tutorials/slurm or collectx docs reference/slurm?",
        ),
    ],
)
def test_a_wrong_name_is_answered_with_names(words, answer, capsys):
    assert docs.main(words) == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("name", docs.pages())
def test_a_page_is_printed_without_what_only_the_site_shows(name, capsys):
    assert docs.main([name]) == 0
    printed = capsys.readouterr().out
    source = re.sub("<!--.*?-->", "", docs.pages()[name].read_text(), flags=re.DOTALL)
    assert blocks(printed) == blocks(source)
    prose = re.sub("`[^`]*`", "", BLOCK.sub("", printed))
    assert not re.findall(r"<!--|</?\w|\]\((?!https?:)|^ *!!!|\{ ?[.#]", prose, re.MULTILINE)
    assert {*re.findall("`collectx docs ([a-z/-]+)`", printed)} <= {*docs.pages()}


def test_links_lead_to_pages_by_their_commands(capsys):
    docs.main(["tutorials/slurm"])
    printed = capsys.readouterr().out
    assert "(`collectx docs reference/slurm`)" in printed
    docs.main(["names"])
    assert "| `env.num_envs` | `n_envs` |" in capsys.readouterr().out


def test_a_narrow_terminal_gets_a_formatted_page_whose_words_are_all_there(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    docs.main(["names"])
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    lines = printed.splitlines()
    assert lines[0].strip() == "Names in other libraries"
    assert max(map(len, lines)) <= 60
    # A word of a table that is longer than its column has several lines.
    assert "…" not in printed
    assert not re.search(r"\*\*|```|\|---", printed)
