"""The page and the figures of a report, and the command that writes them."""

import html
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from collectx.cli import report
from collectx.jobs.status import RunStatus
from collectx.report import page as report_page
from collectx.report.draw import _tick_texts, sections_of
from collectx.report.page import Report, _happened, _origin
from collectx.report.read import Group, Run, groups_of
from collectx.report.tables import group_table, text_table
from collectx.run import RunFolder, Status
from collectx.run.folder.files import write_json

# One process makes the sweep, and the page of it.
pytestmark = pytest.mark.xdist_group("report")

PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """Collects texts, and the attributes that a browser would load something by."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.tags, self.texts = [], [], [], []
        self.feed(path.read_text())
        self.text = " ".join(" ".join(self.texts).split())
        self.title = re.search("<title>(.*)</title>", path.read_text())[1]

    def handle_starttag(self, tag, attrs):
        if tag == "main":
            self.texts.clear()  # the style, and links to sections
        self.tags.append(tag)
        values = [value for name, value in attrs if name in ("src", "href", "srcset", "xlink:href")]
        if tag == "a":
            self.links += [each for each in values if not each.startswith("#")]
        else:
            self.loads += values

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="session")
def written(sweep):
    assert report.main([str(sweep)]) == 0
    return sweep / "report"


@pytest.mark.ci
def test_the_page_loads_nothing(written):
    page = Page(written / "index.html")
    assert page.loads
    assert [each for each in page.loads if not each.startswith(("#", "data:"))] == []
    text = (written / "index.html").read_text()
    assert re.findall(r"url\((?!#|'data:)|@import", text) == []
    sections = re.findall('href="#([a-z]*)">', text)
    assert sections == [
        "results",
        "figures",
        "learning",
        "seeds",
        "throughput",
        "training",
        "timelines",
        "runs",
        "events",
        "configuration",
        "provenance",
    ]
    assert [name for name in sections if text.count(f' id="{name}"') != 1] == []
    # What the runs have in common, such as their command, stands once.
    assert text.count("<code>collectx run -m ") == text.count("All runs: host ") == 1


@pytest.mark.ci
def test_the_page_and_the_pngs_have_all_figures(written):
    names = ["return_frames", "return_time", "seeds_mean_return", "actor_loss", "critic_loss", "entropy"]
    names += ["approx_kl", "clip_fraction", "explained_variance", "learning_rate"]
    # Without lag there is no figure of it. A group has the timeline of its best run.
    names += ["throughput", "scaling", "timeline-0", "timeline-1"]
    assert sorted(path.stem for path in written.glob("*.png")) == sorted(names)
    assert all(path.read_bytes().startswith(PNG) for path in written.glob("*.png"))
    assert sorted(path.stem for path in written.glob("*.pdf")) == sorted(names)
    assert all(path.read_bytes().startswith(b"%PDF") for path in written.glob("*.pdf"))
    page = Page(written / "index.html")
    assert page.tags.count("figure") == len(names)
    assert page.tags.count("svg") == len(names) + 2  # the lines in the legend
    for text in (
        "Return against frames",
        "Frames per second against workers",
        "100%",
        "critic_loss",
        "Of two or three seeds, a line is the mean. A band goes from",
    ):
        assert text in page.text
    assert page.text.count(" completed ") == 4 + 1  # in a sentence
    assert "Nothing failed" in page.text
    assert "collector.frames_per_batch: 128" in page.text


@pytest.mark.ci
def test_the_page_links_to_files_of_the_runs_and_has_their_best_return_and_times(written, sweep):
    page = Page(written / "index.html")
    tables = {written / name for name in ("results.csv", "results.tex", "runs.csv")}
    assert {(written / unquote(link)).resolve() for link in page.links} == {*sweep.glob("coll*"), *tables}
    head = "run status return best return frames frames/s wall (s) start (s) waiting (s) learning (s) checkpoints (s)"
    text = re.sub("(?<=[,=.]) ", "", page.text)  # where a name may be broken
    number = r" ([\d.,]+)"
    rows = re.findall(rf"num_workers=\d,seed=\d completed{9 * number}", text)
    assert head in page.text
    assert len(rows) == 4
    walls = [RunFolder(path).read_result()["wall_s"] for path in sweep.glob("coll*")]
    assert max(sum(map(float, row[5:])) for row in rows) <= max(walls) + 0.2


@pytest.mark.ci
def test_points_and_runs_are_ranked_by_the_objective(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sweep, "sweep")
    rates = {(1, 0): 30.0, (1, 1): 10.0, (2, 0): 20.0, (2, 1): 25.0}
    for (workers, seed), rate in rates.items():
        files = RunFolder(f"sweep/collector.num_workers={workers},seed={seed}")
        write_json(files.result, files.read_result() | {"frames_per_s": rate})
    # Also several folders.
    folders = [str(path) for path in sorted(tmp_path.glob("sweep/coll*"))]
    assert report.main([*folders, "objective=frames_per_s", "out=page"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert last == "written to page/index.html. Open it in a browser."
    text = re.sub("(?<=[,=.]) ", "", Page(tmp_path / "page" / "index.html").text)
    rows = (
        "point seeds frames/s (mean ± std) lowest to highest frames",
        "num_workers=2 2 of 2 22.50 ± 3.54 20.00 to 25.00 1,024",
        "num_workers=1 2 of 2 20.00 ± 14.14 10.00 to 30.00 1,024",
    )
    note = "Fewer than 4 seeds allow no confidence interval: their rank may be chance."
    assert [" ".join(line.split()) for line in table] == ["", *rows, note]
    # The page has the table of the terminal.
    assert " ".join(rows) in text
    runs = text[text.index("Runs run status frames/s return") :]
    # As there, by points; the runs of each by the objective.
    order = [f"num_workers={workers},seed={seed}" for workers, seed in ((2, 1), (2, 0), (1, 0), (1, 1))]
    assert re.findall(r"(\S+) completed", runs)[: len(order)] == order
    differing = text[text.index("What differs") : text.index("Options that all")]
    assert re.findall(r"\S*num_workers=\d,seed=\d", differing) == order
    assert Page(tmp_path / "page" / "index.html").title == "sweep - collectx report"
    assert report.main([*folders[:2], "out=two"]) == 0
    names = ", ".join(f"collector.num_workers=1,seed={seed}" for seed in (0, 1))
    assert Page(tmp_path / "two" / "index.html").title == f"{names} - collectx report"


@pytest.mark.ci
def test_points_that_did_not_start_are_named(sweep, tmp_path, capsys):
    names = [f"collector.num_workers={workers},seed={seed}" for workers in (1, 2) for seed in (0, 1)]
    for count in (2, 1):  # with a table of configurations, and without
        folder = tmp_path / f"sweep{count}"
        for name in names[:count]:
            shutil.copytree(sweep / name, folder / name)
        shutil.copy(sweep / "multirun.yaml", folder)
        assert report.main([str(folder)]) == 0
        out = capsys.readouterr().out
        assert f"\n{4 - count} points of the sweep did not start. Repeat its command" in out
        assert out.count("not started") == (3 if count == 1 else 0)
        text = re.sub("(?<=[,=.]) ", "", Page(folder / "report" / "index.html").text)
        short = [name.removeprefix("collector.") for name in names]
        assert re.findall(r"(\S*num_workers=\d,seed=\d) not started", text) == short[count:]


@pytest.mark.ci
def test_what_happened_is_said_and_escaped(sweep, tmp_path):
    folder = tmp_path / "<b>run"
    shutil.copytree(sweep / "collector.num_workers=2,seed=1", folder)
    files = RunFolder(folder)
    files.log("trainer").touch()
    write_json(files.result, files.read_result() | {"status": "failed", "exit_reason": "ValueError: <script>alert(1)"})
    with open(files.events, "a") as file:
        file.write('{"time": 1e9, "event": "worker_failed", "worker": 1, "type": "E", "message": "$x_1 & <i>"}\n')
    assert report.main([str(folder)]) == 0
    page = Page(files.report / "index.html")
    assert page.tags.count("script") == 1  # its own
    assert "b" not in page.tags
    for text in ("worker 1 failed: E: $x_1 & <i>", "failed: ValueError: <script>alert(1)", "<b>run"):
        assert text in page.text
    assert [unquote(link) for link in page.links] == ["results.csv", "results.tex", "..", "../logs/trainer.log"]
    assert html.escape("<b>run") in (files.report / "index.html").read_text()


@pytest.mark.ci
def test_a_run_without_batches_has_a_page(sweep, tmp_path):
    shutil.copytree(sweep / "collector.num_workers=2,seed=1", tmp_path / "run")
    for name in ("metrics.jsonl", "result.json"):
        (tmp_path / "run" / name).unlink()
    assert report.main([str(tmp_path / "run")]) == 0
    page = Page(tmp_path / "run" / "report" / "index.html")
    assert "svg" not in page.tags
    assert page.title == "run - collectx report"
    assert "failed: its process ended without a result" in page.text


WHICH = r"report: which runs\? For your newest run: collectx report outputs/\S+\. Usage: collectx report DIR\.\.\."


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], WHICH),
        ([""], WHICH),
        (["nowhere"], r"report: there is no folder 'nowhere'\."),
        (["{sweep}", "objective=mean_retrun"], r"Did you mean mean_return\?"),
        (["{sweep}", "out=/proc/nothing"], "cannot write the report to /proc/nothing"),
    ],
)
def test_wrong_usage(sweep, tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    Path("outputs").symlink_to(sweep)
    assert report.main([word.replace("{sweep}", str(sweep)) for word in argv]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_names_the_extra(sweep, monkeypatch, capsys, package):
    for name in [name for name in sys.modules if name.startswith("collectx.report") or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert report.main([str(sweep)]) == 2
    assert "pip install 'collectx[report]'" in capsys.readouterr().err


def test_where_a_run_comes_from(tmp_path):
    files = RunFolder(tmp_path)
    assert set(_origin(files, tmp_path / "report").values()) == {"", f'<a href="..">{tmp_path}</a>'}
    files.meta.parent.mkdir(parents=True, exist_ok=True)
    meta = {
        "time": "now",
        "host": "n1",
        "argv": ["collectx", "run", 3],
        "packages": {"torch": "2.1"},
        "git": {"cwd": {}},
    }
    for git, commit in ({}, ""), ({"commit": "abc"}, "abc"), ({"commit": "abc", "dirty": True}, "abc with changes"):
        write_json(files.meta, meta | {"git": {"cwd": git}})
        origin = _origin(files, tmp_path)
        assert (origin["commit"], origin["command"], origin["torch"]) == (commit, "collectx run 3", "2.1")


def test_the_row_of_a_group_has_an_interval_of_four_runs_or_more(tmp_path):
    runs = [
        Run(str(n), RunFolder(tmp_path), RunStatus(Status.STOPPED), {"frames": value} if value is not None else {})
        for n, value in enumerate((4.0, 4.0, 8.0, 8.0, None))
    ]
    table = group_table([Group("one", tuple(part)) for part in (runs, runs[1:], runs[4:])], "frames", "", "")
    assert [row[1:] for row in table.rows] == [
        ("4 of 5, stopped", "6.000", "4.000 to 8.000", "4 to 8", "6.000 ± 2.309", "4.000", "8.000"),
        ("3 of 4, stopped", "6.667", "-", "4 to 8", "6.667 ± 2.309", "4.000", "8.000"),
        ("0 of 1, stopped", *"------"),
    ]
    # Where all groups have fewer, they have their extremes.
    table = group_table([Group("one", tuple(part)) for part in (runs[1:], runs[3:])], "frames", "", "")
    assert [row[1:] for row in table.rows] == [
        ("3 of 4, stopped", "6.667 ± 2.309", "4.000 to 8.000", "4 to 8"),
        ("1 of 2, stopped", "8.000", "-", "8"),
    ]
    assert table.csv().splitlines() == [
        "point,seeds,runs,objective,mean,std,min,max,frames_min,frames_max",
        "one,3,4,frames,6.666666667,2.309401077,4,8,4,8",
        "one,1,2,frames,8,,,,8,8",
    ]


def test_pairs_of_numbers_line_up(tmp_path):
    values = {0: (-100.0, -300.0), 1: (-20.0, -30.0)}
    runs = [
        made_run(tmp_path, 0, Status.COMPLETED, value, **{"trainer.size": size, "seed": seed})
        for size, each in values.items()
        for seed, value in enumerate(each)
    ]
    (table,) = Report(runs, "mean_return").tables
    assert [row[2:4] for row in table.rows] == [
        ("-25.0 ±   7.1", "-30.0 to  -20.0"),
        ("-200.0 ± 141.4", "-300.0 to -100.0"),
    ]
    path = Report(runs, "mean_return").write(tmp_path / "report")
    assert "−25.0 ±\u00a0\u2007\u20077.1" in Page(path).texts
    assert (
        "size=1 & 2 of 2 & $-$25.0 $\\pm$   7.1 & $-$30.0 to  $-$20.0 & 0" in (path.parent / "results.tex").read_text()
    )


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0, 10_000, 20_000), ["0", "10k", "20k"]),
        ((0, 2_500, 5_000), ["0", "2,500", "5,000"]),
        ((-0.5, 1e-17, 0.25), ["−0.50", "0", "0.25"]),
        ((0, 1.5e6, 3e6), ["0", "1.5M", "3.0M"]),
        ((0, 1e-7), ["0", "1e−07"]),
        ((0, 1e20), ["0", "1e+20"]),
    ],
)
def test_the_numbers_of_an_axis_are_written_alike(values, texts):
    assert _tick_texts(values, max(map(abs, values))) == texts


def test_texts_are_escaped_for_latex():
    table = text_table("", "", ("a_b", "c"), [("5% & $x_1", "-"), ("~{^}\\", "x-1")])
    assert table.latex().splitlines()[2:-2] == [
        r"a\_b & c \\",
        r"\midrule",
        r"5\% \& \$x\_1 & -- \\",
        r"\~{}\{\^{}\}/ & x-1 \\",
    ]


@pytest.mark.parametrize(
    ("objective", "seeds", "chances"),
    [
        # 4 of 16 pairs are better, and 8 are ties.
        ("mean_return", 4, {"size=1": "-", "size=0": "50%", "size=2": "100%"}),
        ("wall_s", 4, {"size=2": "-", "size=0": "100%", "size=1": "100%"}),
        ("mean_return", 3, None),
    ],
)
def test_of_four_seeds_or_more_the_first_row_is_compared_with_each_other(tmp_path, objective, seeds, chances):
    values = {0: (2.0, 2.0, 2.0, 2.0), 1: (1.0, 2.0, 2.0, 9.0), 2: (0.0, 0.0, 0.0, 0.0)}
    runs = [
        made_run(tmp_path, 2 * size, Status.COMPLETED, value, seed=seed)
        for size, each in values.items()
        for seed, value in enumerate(each[:seeds])
    ]
    for run in runs:
        run.numbers = {**run.numbers, "wall_s": run.numbers["mean_return"]}
    (table,) = Report(runs, objective).tables
    if chances is None:
        assert "P(first is better)" not in table.head
    else:
        assert table.head[3:5] == ("95% CI", "P(first is better)")
        assert {row[0]: row[4] for row in table.rows} == chances
        # A terminal does not show it.
        hidden = ["P(first is better)", "mean ± std", "min", "max"]
        assert [column.head for column in table.columns if column.is_hidden] == hidden


def test_what_happened_is_told_in_order_with_the_end_of_a_run_that_failed(tmp_path):
    run = Run("a", RunFolder(tmp_path), RunStatus(Status.FAILED, "no memory"), messages=[(5.0, "lost")])
    other = Run("b", RunFolder(tmp_path), RunStatus(Status.COMPLETED))
    first, last = _happened([run, other])
    assert first[1:] == ("0.0", "a", "lost")
    assert last == ("", "", "a", "failed: no memory")
    run.status = RunStatus(Status.INTERRUPTED)
    assert list(_happened([run]))[1][3] == "interrupted"
    run.status = RunStatus(Status.FAILED, "lost")
    assert [row[3] for row in _happened([run])] == ["lost"]


def made_run(folder, number, status, mean_return, **options):
    """Makes a run folder. Each run has an option of its own, except those of the same group."""
    files = RunFolder(folder / f"run{number:02d}")
    files.begin()
    options = {"env.id": "CartPole-v1", "trainer.size": number // 2, "seed": number % 2, **options}
    numbers = {"frames": 100 * number, "frames_per_s": 10.0, "mean_return": mean_return, "wall_s": 2.5}
    return Run(
        files.path.name, files, RunStatus(status, "a reason" if status is Status.FAILED else ""), numbers, options
    )


class Plot:
    """In place of a figure."""

    def __init__(self, *words):
        self.name = self.caption = self.title = " ".join(words)

    def svg(self):
        return ""

    def write(self, folder):
        (folder / f"{self.name}.png").touch()

    def __getattr__(self, name):
        return ""


def test_a_page_of_many_runs(tmp_path, monkeypatch, expected):
    """Ranked; with curves of the best groups, and timelines of the runs that failed before those of the best."""
    statuses = {3: Status.FAILED, 8: Status.FAILED, 9: Status.INTERRUPTED}
    runs = [
        made_run(tmp_path, number, statuses.get(number, Status.COMPLETED), None if number == 5 else number % 7 + 0.5)
        for number in range(26)
    ]
    drawn = []

    def drawing(groups, objective):
        drawn.append([objective, *(group.name for group in groups)])
        return {"Learning": [Plot("curve")], "Training": []}

    def timeline(run, name):
        drawn.append([run.name, name])
        return [Plot(name)]

    monkeypatch.setattr(report_page, "sections_of", drawing)
    monkeypatch.setattr(report_page, "timeline", timeline)
    path = Report(runs, "mean_return").write(tmp_path / "report")
    assert path == tmp_path / "report" / "index.html"
    assert len(list(path.parent.glob("*.png"))) == 1 + 6
    text = " ".join(" ".join(Page(path).texts).split())
    begin, end = text.index("point seeds"), text.index("Provenance")
    expected("page", {"drawn": drawn, "text": text[begin:end].replace(" run", "\nrun").splitlines()})


def columns(frames, returns):
    """The columns of a run with a frame each second."""
    return {
        name: np.array(each, float)
        for name, each in {"frames": frames, "elapsed_s": frames, "mean_return": returns}.items()
    }


def lines_of(plot):
    """The lines of a figure, by their widths: frames and values."""
    axes = plot.figure.axes[0]
    return sorted((line.get_linewidth(), line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines)


def test_a_mean_is_drawn_where_all_seeds_are_and_each_run_to_its_own_end(tmp_path):
    """Two seeds, one of which is shorter, and one that failed."""
    runs = [made_run(tmp_path, 0, status, 1.0, seed=seed) for seed, status in enumerate(["completed"] * 2 + ["failed"])]
    for run, count, slope in zip(runs, (4, 2, 3), (1, 3, 9), strict=True):
        run.status = RunStatus(Status(run.status.status))
        run.columns = columns([10 * n for n in range(1, count + 1)], [slope * n for n in range(1, count + 1)])
    plot, over_time = sections_of(groups_of(runs), "mean_return")["Learning"]
    assert plot.name == "return_frames"
    failed, cross = (0.8, [10, 20, 30], [9, 18, 27]), (1.5, [30], [27])
    assert lines_of(plot) == [failed, (0.8, [20, 30, 40], [2, 3, 4]), cross, (1.6, [10, 20], [2, 4])]
    # Over time, the shorter seed keeps its return.
    assert lines_of(over_time) == [failed, cross, (1.6, [10, 20, 40], [2, 4, 5])]
    assert over_time.legend[1].startswith("Against time, a seed that has finished keeps its last return")
    runs[1].status = RunStatus(Status.RUNNING)
    _, over_time = sections_of(groups_of(runs), "mean_return")["Learning"]
    assert lines_of(over_time)[-1] == (1.6, [10, 20], [2, 4])
    for text, words in zip(plot.legend, ("Of two or three", "A thin line is", "A cross is the end"), strict=True):
        assert text.startswith(words)


def test_long_names_of_points_leave_room_for_their_seeds(tmp_path):
    runs = tuple(made_run(tmp_path, 0, Status.COMPLETED, 1.0, seed=seed) for seed in range(2))
    group = Group("many/learning_rate=0.003,gae_lambda=0.95,entropy_coeff=0.01", runs)
    (plot,) = sections_of([group], "mean_return")["Seeds"]
    plot.svg()
    assert plot.figure.axes[0].get_position().width > 0.4


@pytest.mark.parametrize(("count", "marker"), [(1, "o"), (4, "o"), (5, "")])
def test_a_few_points_are_marked_on_their_line(tmp_path, count, marker):
    runs = [made_run(tmp_path, 0, Status.COMPLETED, 1.0, seed=seed) for seed in range(2)]
    for run in runs:
        run.columns = columns(range(count), range(count))
    plot, _ = sections_of(groups_of(runs), "mean_return")["Learning"]
    (mean,) = plot.figure.axes[0].lines
    assert (mean.get_linestyle(), mean.get_marker()) == ("-", marker)


def test_groups_of_unequal_numbers_of_seeds_say_how_many(tmp_path):
    runs = [made_run(tmp_path, n, Status.COMPLETED, 1.0) for n in (2, 3, 4)]
    for run in runs:
        run.columns = columns([10, 20], [1, 2])
    plot, _ = sections_of(groups_of(runs), "mean_return")["Learning"]
    labels = [line.get_label() for line in plot.figure.axes[0].lines]
    assert labels == ["size=1 (2 seeds)", "size=2 (1 seed)"]
    # The page tells the names once, and the title is the label of y.
    svg = plot.svg()
    assert [text for text in ("seeds)", ">mean return<", ">frames<") if text in svg] == [">frames<"]
    assert plot.legend[0].startswith("Of two or three seeds, a line is the mean")


def test_a_line_on_another_has_gaps(tmp_path):
    runs = [made_run(tmp_path, 2 * size, Status.COMPLETED, 1.0) for size in range(3)]
    for run, slope in zip(runs, (1, 2, 1), strict=True):
        run.columns = columns([10, 20], [slope, 2 * slope])
    plot, _ = sections_of(groups_of(runs), "mean_return")["Learning"]
    assert [line.is_dashed() for line in plot.figure.axes[0].lines] == [False, False, True]


@pytest.mark.parametrize(("number", "where"), [("mean_return", "above"), ("wall_s", "below")])
def test_a_performance_profile_needs_five_seeds(tmp_path, number, where):
    runs = [made_run(tmp_path, 0, Status.COMPLETED, 1.0, seed=seed) for seed in range(5)]
    for run, value in zip(runs, (1.0, 2, 2, 3, 5), strict=True):
        run.numbers = {number: value}
    points, profile = sections_of(groups_of(runs), number)["Seeds"]
    assert (points.name, profile.name) == (f"seeds_{number}", f"profile_{number}")
    axes = profile.figure.axes[0]
    assert axes.get_ylabel() == f"share of seeds {where}"
    shares = np.interp([0.9, 1.5, 2.5, 4.0, 5.1], *axes.lines[0].get_data())
    above = pytest.approx([1.0, 0.8, 0.4, 0.2, 0.0])
    assert (shares if where == "above" else 1 - shares) == above
    (points,) = sections_of(groups_of(runs[:4]), number)["Seeds"]


def test_a_configuration_has_one_colour_with_all_envs(tmp_path):
    runs = [made_run(tmp_path, n, Status.COMPLETED, 1.0, **{"env.id": f"Env{n % 2}", "seed": 0}) for n in range(4)]
    for run in runs:
        run.columns = columns([10, 20], [1, 2])
    plots = sections_of(groups_of([runs[0], runs[2], runs[3], runs[1]]), "mean_return")["Learning"][::2]
    colours = [{line.get_label(): line.get_color() for line in plot.figure.axes[0].lines} for plot in plots]
    assert [plot.title for plot in plots] == ["Return against frames, Env0", "Return against frames, Env1"]
    assert colours[0] == colours[1]
    assert {*colours[0]} == {"size=0", "size=1"}


def test_the_points_of_a_sweep_by_halving_are_in_the_order_of_its_rungs(tmp_path):
    """One has run on since, and is the best by now."""
    runs = [made_run(tmp_path, 2 * size, Status.COMPLETED, float(size)) for size in range(3)]
    rows = [[run.name, "", ""] for run in (runs[1], runs[2], runs[0])]
    write_json(tmp_path / "halving.json", {"head": ["point", "status", "512"], "rows": rows})
    text = Page(Report(runs, "mean_return").write(tmp_path / "report")).text
    assert re.findall(r"(run\d\d) completed", text) == ["run02", "run04", "run00"]


def test_what_ended_early_is_noted_with_the_results(tmp_path):
    runs = [made_run(tmp_path, n, Status.FAILED if n < 7 else Status.COMPLETED, None) for n in range(8)]
    assert Report(runs, "mean_return").notes == [
        *(f"run{n:02d}: failed: a reason" for n in range(5)),
        "2 more runs ended early.",
        "Fewer than 4 seeds allow no confidence interval: their rank may be chance.",
    ]
