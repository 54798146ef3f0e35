"""Runs the blocks of a page of the documentation, in their order, in one folder.

    ```console             lines `$ COMMAND`, then what each prints; numbers may differ, except for sizes such as
                           `440 MB`, and `...` stands for any lines
    ```python title="F"    saved as F; without a title it is run
    ```yaml title="F"      saved as F, as every other language with a title is

`<!-- exit status: 2 -->` above a block: its last command ends with this status instead of 0. So does a comment behind
any command, which readers see: `$ collectx run seed=x  # exit status 2`.
`python tests/pages.py PAGE...` replaces the numbers in what the page prints, except for sizes, by those of a new run.

`<!-- not run: REASON -->` above a block leaves it out; `<!-- hidden` above a block and `-->` below it run it, but the
site does not show it. The first line of a page may be its tier, `<!-- tier: ci -->`, or what it needs, `<!-- needs:
slurm -->`: those pages are run by `tests/slurm/test_pages.py`, and their numbers are replaced by
`python tests/slurm/cluster.py python tests/pages.py PAGE`. The page that needs `packages` is run by
`tests/ecosystem/test_packages.py`.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from commands import environment

ROOT = Path(__file__).parents[1]
# STATUS.md is not part of the site.
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "STATUS.md"})]
_BLOCK = re.compile(
    r"^(?P<skip><!-- not run: [^>]+ -->\n)?(?:<!-- exit status: (?P<status>\d+) -->\n)?"
    r"(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_STATUS = re.compile(r"\s+# exit status (\d+)$")


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        line: its line in the page.
        language: such as `console`.
        title: the file that it is saved as, or None.
        text: without indentation.
        skipped: whether it is not run.
        status: the exit status of its last command.
    """

    line: int
    language: str
    title: str | None
    text: str
    skipped: bool
    status: int

    @property
    def is_run(self) -> bool:
        return not self.skipped and self.language in ("console", "python") and self.title is None

    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command, and the lines that it prints; none means that they are not compared."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and found[-1][0].endswith("\\") and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line}", [])
            elif found and line.strip():
                found[-1][1].append(line)
        return found


def tier(page: Path) -> str:
    """The tier of the page's test."""
    found = re.match(r"<!-- tier: (\w+) -->", page.read_text())
    return found[1] if found else "test"


def needs(page: Path) -> str | None:
    """Returns what the page's blocks need beyond this installation, or None."""
    found = re.match(r"<!-- needs: (\w+) -->", page.read_text())
    return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(
            text.count("\n", 0, found.start()) + 1,
            found["language"],
            found["title"],
            re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            bool(found["skip"]),
            int(found["status"] or 0),
        )
        for found in _BLOCK.finditer(text)
    ]


def run(page: Path, folder: Path, timeout_s: float, **variables: str) -> list[str]:
    """Runs all blocks of the page in the folder, with these environment variables. Returns the page's lines, with what
    was printed.

    Raises:
        AssertionError: a command ended with another exit status, or printed other lines.
    """
    environ = environment(COLUMNS="140", PYTHONPATH=str(folder), **variables)
    page_lines = page.read_text().splitlines()
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.title is not None and not block.skipped:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        if not block.is_run:
            continue
        if block.language == "python":
            script = folder / f"block_{block.line}.py"
            script.write_text(block.text)
            steps = [([sys.executable, str(script)], 0, [])]
        else:
            steps = [
                (["bash", "-c", _STATUS.sub("", command)], int((_STATUS.search(command) or [0, 0])[1]), lines)
                for command, lines in block.commands()
            ]
            if block.status:
                steps[-1] = (steps[-1][0], block.status, steps[-1][2])
        at = block.line
        for words, status, lines in steps:
            done = subprocess.run(
                words, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                stdin=subprocess.DEVNULL, timeout=timeout_s,
            )  # fmt: skip
            assert done.returncode == status, f"{where}: {words[-1]}\n{done.stdout}"
            missing, found = compare(lines, done.stdout.splitlines())
            assert missing is None, f"{where}: {words[-1]}\nnot printed: {missing}\nprinted:\n{done.stdout}"
            for old, new in zip(lines, found, strict=True):
                at = next(number for number in range(at, len(page_lines)) if page_lines[number].strip() == old.strip())
                if old.strip() != "...":
                    page_lines[at] = page_lines[at].replace(old.rstrip(), new.rstrip())
                at += 1
    return page_lines


def compare(expected: list[str], printed: list[str]) -> tuple[str | None, list[str]]:
    """The first line of a run of expected lines that is not printed as such, or None; and what was printed for each of
    the expected lines, `...` for itself.

    Numbers, dates and white space are not compared, but sizes are, which depend on the configuration alone; a line
    `...` stands for any number of lines, and empty lines are left out.
    """
    if not expected:
        return None, []
    # A busy machine says what it imports.
    printed = [line for line in printed if line.strip() and not line.startswith("collectx: starting (importing ")]
    rest, found = [_form(line) for line in printed], []
    runs = [list(run) for is_open, run in groupby(expected, lambda line: line.strip() == "...") if not is_open]
    is_open, ends_open = expected[0].strip() == "...", expected[-1].strip() == "..."
    for number, run in enumerate(runs, start=1):
        forms = [_form(line) for line in run]
        last = len(rest) - len(forms)
        places = [0] if not is_open else range(last + 1) if ends_open or number < len(runs) else [last]
        at = next((place for place in places if rest[place : place + len(forms)] == forms), None)
        if at is None:
            return run[0], []
        begin = len(printed) - len(rest) + at
        found += [*(["..."] if is_open else []), *printed[begin : begin + len(forms)]]
        rest, is_open = rest[at + len(forms) :], True
    if rest and not ends_open:
        return f"(more lines) {printed[-1]}", []
    return None, [*found, *(["..."] if ends_open else [])]


def _form(line: str) -> str:
    number = r"[-+]?\d+([.,:e+-]*\d+)*"
    return re.sub(rf"{number}(?![\d.,]* (bytes|[kMGT]B)\b)", "#", " ".join(line.split()))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            new_lines = run(Path(name).resolve(), Path(scratch), 1800.0)
        Path(name).write_text("\n".join(new_lines) + "\n")
