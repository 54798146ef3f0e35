"""`collectx report` in a real browser, and `collectx watch` in a real terminal."""

import html
import json
import re
import subprocess

import matplotlib.image
import pytest
from commands import collectx, debian, environment, forked, start

# Chromium itself would ask its maker's servers.
_HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND")
_BAD = '<img src="http://127.0.0.1:9/logo.png"><script>console.error("broken")</script>'


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a sweep."""
    folder = tmp_path_factory.mktemp("report")
    words = ["collector.num_workers=1,2", "seed=0,1", "collector.total_frames=4096", "hydra.sweep.dir=sweep"]
    forked("run", "-m", *words, cwd=folder)
    done = collectx("report", "sweep", cwd=folder)
    assert done.stdout.endswith("\nwritten to sweep/report/index.html. Open it in a browser.\n")
    return folder / "sweep" / "report" / "index.html"


@pytest.fixture
def browse(tmp_path):
    """`browse(page, *flags)` opens a page in Chromium, and returns what it printed."""
    chromium = debian("chromium", "chromium")

    def run(page, *flags):
        command = [chromium, *_HEADLESS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.xdist_group("page")
def test_the_page_opens_without_errors_and_without_network(page, browse, tmp_path):
    (tmp_path / "bad.html").write_text(_BAD)
    outcomes = {}
    for path in (page, tmp_path / "bad.html"):
        done = browse(path, "--dump-dom", "--enable-logging=stderr", f"--log-net-log={tmp_path / 'net.json'}")
        events = json.loads((tmp_path / "net.json").read_text())["events"]
        # A file has the origin "null", Chromium itself "not an origin".
        asked = {each["params"]["url"] for each in events if each.get("params", {}).get("initiator") == "null"}
        outcomes[path.name] = "CONSOLE" in done.stderr, asked, done.stdout.count("<svg viewBox")
    assert outcomes == {"index.html": (False, set(), 14), "bad.html": (True, {"http://127.0.0.1:9/logo.png"}, 0)}


@pytest.mark.ci
def test_the_page_and_the_terminal_name_the_same_numbers(tmp_path):
    words = ["policy=random", "trainer=meter", "launcher=inline", "run.max_batches=3", "hydra.sweep.dir=sweep"]
    said = forked("run", "-m", *words, "seed=range(0,8)", cwd=tmp_path).stdout.splitlines()
    _, head, row, _ = forked("report", "sweep", cwd=tmp_path).stdout.splitlines()
    text = texts_of(tmp_path / "sweep" / "report" / "index.html")
    # Mean, standard deviation, minimum and maximum are those that the sweep has printed.
    mean, std, low, high = next(line.split() for line in said if line.startswith("all "))[2:]
    head, row = " ".join(head.split()), " ".join(row.split())
    assert f"{head} mean ± std min max {row} {mean} ± {std} {low} {high} " in text
    results = [json.loads(file.read_text())["mean_return"] for file in tmp_path.glob("sweep/*/result.json")]
    assert row.split()[:5] == ["all", "8", "of", "8", f"{sum(sorted(results)[2:6]) / 4:#.4g}"]
    assert "Performance profile of mean return" in text


def texts_of(page):
    """The texts of a page, in which a long name may be broken."""
    text = page.read_text().replace("<wbr>", "")
    return html.unescape(" ".join(re.sub("<[^>]*>", " ", text).split()))


@pytest.mark.xdist_group("page")
@pytest.mark.parametrize(("scheme", "is_dark"), [(0, True), pytest.param(1, False, marks=pytest.mark.nightly)])
def test_the_page_is_light_or_dark_as_the_user_prefers(page, browse, tmp_path, scheme, is_dark):
    browse(page, f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1300,1500", "--screenshot=shot.png")
    shot = matplotlib.image.imread(tmp_path / "shot.png")[:, :, :3]
    ground = shot[2, 2]
    assert (ground.mean() < 0.2) == is_dark
    # Half of the page is ground or panel, and its texts have the other brightness.
    assert abs(shot.mean() - ground.mean()) < 0.2
    assert abs(shot - ground).max() > 0.6


# Moves the pointer to the middle of two figures, clicks on the second name of the legend, and says what came of it as
# attributes of the page's root.
PRESS = """<script>
const root = document.documentElement;
for (const name of ["Return against frames", "actor_loss"]) {
  const figure = root.querySelector(`figure[aria-label="${name}"] svg`), box = figure.getBoundingClientRect();
  const [clientX, clientY] = [box.x + box.width / 2, box.y + box.height / 2];
  figure.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY}));
  root.dataset[name.split(/[ _]/)[0].toLowerCase()] = document.querySelector("#tip").innerText.replaceAll("\\n", "; ");
}
const loss = root.querySelector("[data-smooth] svg");
const press = (...keys) => {
  for (const key of keys) loss.dispatchEvent(new KeyboardEvent("keydown", {key}));
  return tip.hidden ? "hidden" : tip.innerText.replaceAll("\\n", "; ");
};
root.dataset.keys = press("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown");
loss.dispatchEvent(new FocusEvent("blur"));
root.dataset.keys += `; ${press()}`;
const frames = (...keys) => press(...keys).match(/frames: ([\\d,]+)/)[1];
const ends = [frames("End"), frames("Home"), frames(...Array(50).fill("ArrowRight")), press("Escape")];
root.dataset.ends = ends.join("; ");
const box = root.querySelector("input"), path = root.querySelector("[data-smooth] .curve > path");
const roughness = () => {
  const heights = [...path.getAttribute("d").matchAll(/[ML] \\S+ (\\S+)/g)].map(([, y]) => +y);
  return heights.slice(1).reduce((sum, y, i) => sum + Math.abs(y - heights[i]), 0);
};
const before = [roughness(), path.getAttribute("d")];
box.click();
root.dataset.smoothed = `${roughness() < before[0]} ${path.previousSibling.getAttribute("d") === before[1]}`;
box.click();
root.dataset.smoothed += ` ${path.getAttribute("d") === before[1]} ${document.querySelectorAll(".faint").length}`;
const entries = [...document.querySelectorAll("button")];
entries[1].click();
root.dataset.pressed = entries.map(each => each.dataset.of + " " + each.ariaPressed).join("; ");
const hidden = [...document.querySelectorAll(".curve")].filter(each => getComputedStyle(each).display === "none");
root.dataset.hidden = [...new Set(hidden.map(each => each.dataset.of))].join("; ");
root.dataset.figures = new Set(hidden.map(each => each.closest("svg"))).size;
const texts = [...document.querySelectorAll(".part > text")].filter(each => !each.getClientRects().length);
root.dataset.labels = texts.map(each => each.textContent).join("; ");
</script>"""


@pytest.mark.xdist_group("page")
def test_a_curve_tells_its_values_and_its_name_hides_it_in_all_figures(page, browse, tmp_path):
    (tmp_path / "page.html").write_text(page.read_text().replace("</body>", f"{PRESS}</body>"))
    dom = browse(tmp_path / "page.html", "--dump-dom", "--window-size=1280,900").stdout
    data = dict(re.findall(r'data-(return|actor|keys|ends|pressed|hidden|figures|labels|smoothed)="([^"]*)"', dom))
    assert re.fullmatch(r"num_workers=[12]; frames: [1-3],?\d{3}; mean return: \d\d\.\d+", data["return"])
    assert re.fullmatch(r"num_workers=[12]; frames: [1-3],?\d{3}; actor_loss: -?0\.0\d{4,}", data["actor"])
    # The second point of the second line.
    assert re.fullmatch(r"num_workers=2; frames: 1,024; actor_loss: -?0\.0\d{4,}; hidden", data["keys"])
    assert data["ends"] == "4,096; 512; 4,096; hidden"
    # Smoothed over a faint line with all values, and back.
    assert data["smoothed"] == "true true true 0"
    assert data["pressed"] == "num_workers=1 true; num_workers=2 false"
    assert (data["hidden"], data["figures"], data["labels"]) == ("num_workers=2", "11", "num_workers=2")


# Removes figures one by one; says how many figures a row has, and which rows do not end at the right edge.
ROWS = """<script>
const grid = document.querySelector(".figures");
const bad = [], sizes = new Set();
for (let count = grid.childElementCount; count; count--) {
  const rows = Map.groupBy(grid.querySelectorAll("figure"), each => Math.round(each.getBoundingClientRect().top));
  for (const row of rows.values()) {
    sizes.add(row.length);
    const end = Math.max(...row.map(each => each.getBoundingClientRect().right));
    if (Math.abs(end - grid.getBoundingClientRect().right) > 1) bad.push(`${count}: ${row[0].ariaLabel}`);
  }
  grid.lastElementChild.remove();
}
document.documentElement.dataset.rows = `${[...sizes].sort()} ${bad}`;
</script>"""


@pytest.mark.xdist_group("page")
@pytest.mark.parametrize(("width", "sizes"), [(1280, "1,2,3"), (800, "1,2"), (500, "1")])
def test_figures_fill_their_rows(page, browse, tmp_path, width, sizes):
    (tmp_path / "page.html").write_text(page.read_text().replace("</body>", f"{ROWS}</body>"))
    dom = browse(tmp_path / "page.html", "--dump-dom", f"--window-size={width},900").stdout
    assert re.search('data-rows="([^"]*)"', dom)[1] == f"{sizes} "


@pytest.fixture
def terminal(tmp_path, wait_until):
    """`terminal(width, command)` starts a command in a real terminal; returns functions that read the screen, wait for
    a text on it, and press Ctrl-C."""
    tmux = [debian("tmux", "tmux"), "-L", f"collectx-{tmp_path.name}", "-f", "/dev/null"]

    def screen():
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True).stdout

    def start_in(width, command):
        command = ["new-session", "-d", "-x", str(width), "-y", "30", f"{command}; sleep 60"]
        subprocess.run([*tmux, *command], cwd=tmp_path, env=environment(LC_ALL="C.UTF-8"), check=True)

        def wait_for(*parts):
            wait_until(lambda: all(part in screen() for part in parts), 60, f"{parts} in {screen()}")

        def press_ctrl_c():
            subprocess.run([*tmux, "send-keys", "C-c"], check=True)

        return screen, wait_for, press_ctrl_c

    yield start_in
    subprocess.run([*tmux, "kill-server"], capture_output=True)


def test_a_run_tells_how_far_it_is_and_how_to_go_on_in_80_columns(terminal, wait_until):
    command = "collectx run experiment=cartpole_ppo collector.total_frames=1_000_000 hydra.run.dir=run"
    screen, wait_for, press_ctrl_c = terminal(80, command)
    title = "cartpole_ppo  CartPole-v1, ppo  seed 0  run\n"
    wait_for(title, "waiting for the first batch", "Ctrl-C saves and stops")
    wait_for(
        title,
        " / 1,000,448 frames (",
        "%)  elapsed 0:",
        "  ETA <= ",
        "   best ",
        "Ctrl-C saves and stops",
    )
    wait_until(lambda: sum(0x2800 < ord(each) < 0x2900 for each in screen()) > 40, 60, "curves")
    press_ctrl_c()
    wait_for("interrupted by SIGINT", "to continue from the newest checkpoint: collectx resume run\n")


@pytest.mark.nightly
def test_watch_draws_curves_in_a_terminal(tmp_path, wait_until, terminal):
    run = start("run", "collector.total_frames=-1", "hydra.run.dir=run", cwd=tmp_path)
    try:
        wait_until((tmp_path / "run" / "metrics.jsonl").exists, 60, "the first batch")
        screen, wait_for, press_ctrl_c = terminal(100, "collectx watch run")
        wait_for("return ", "frames/s ", "worker 0", "worker 1", "trainer", "critic_loss", "the run continues")
        wait_until(lambda: sum(0x2800 < ord(each) < 0x2900 for each in screen()) > 60, 60, "curves")
        press_ctrl_c()
        wait_for("stopped watching;")
        assert run.poll() is None
    finally:
        run.terminate()
        run.wait(60)


PUSHING = """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        info = {"pushed": float(action), "is_success": 1.0}
        return np.zeros(2, np.float32), 0.1, self.np_random.random() < 0.2, False, info
"""
# Adds to a page, as attributes of its root, how far the returns reach to the right, and how far the page is too wide.
RIGHT = """<script>
const cells = [...document.querySelectorAll("td.status + td, #results div:first-of-type td:nth-child(3)")];
document.documentElement.dataset.right = Math.max(...cells.map(each => each.getBoundingClientRect().right));
document.documentElement.dataset.over = document.documentElement.scrollWidth - innerWidth;
</script>"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The folder of a sweep, with a run of another env and what repeats it."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "pushing.py").write_text(PUSHING)
    sizes = ["collector.frames_per_batch=128", "collector.total_frames=512", "launcher=inline"]
    words = ["env=gym", "env.entry_point=pushing:Env", "env.metrics=[pushed,is_success]", "seed=0,1"]
    words += ["collector.num_workers=1,2", "eval.every_batches=2", "eval.episodes=2"]
    forked("run", "-m", *sizes, *words, "hydra.sweep.dir=sweep", cwd=folder)
    forked("run", *sizes, "hydra.run.dir=first", cwd=folder)
    forked("reproduce", "first", "hydra.run.dir=again", cwd=folder)
    forked("report", "sweep", "first", "again", "out=report", cwd=folder)
    return folder / "report"


def test_a_run_that_was_repeated_is_one_seed(mixed):
    page = (mixed / "index.html").read_text().replace("<wbr>", "")
    rows = re.findall("<tr><td>(.*?)</td><td>(.*?)</td>(.*?)</tr>", page)
    seeds = {name: (count, cells) for name, count, cells in rows if " of " in count}
    assert {name: count for name, (count, _) in seeds.items()} == {
        "first": "1 of 1 (1 repeat)",
        "num_workers=1": "2 of 2",
        "num_workers=2": "2 of 2",
    }
    # Neither a deviation nor an interval.
    assert "±" not in seeds["first"][1]
    assert seeds["first"][1].count(">-<") == 1
    assert all("±" in seeds[f"num_workers={number}"][1] for number in (1, 2))


def test_each_env_and_each_metric_has_figures_of_its_own(mixed):
    text = (mixed / "index.html").read_text()
    titles, figures = {}, {}
    for heading, title, figure in re.findall("<h3>([^<]*)</h3>\n<h4>(.*?)</h4>(.*?)</figure>", text, re.DOTALL):
        titles.setdefault(heading, []).append(title)
        figures[title] = figure
    envs = "pushing:Env", "CartPole-v1"
    assert re.findall("<h3>(.*?)</h3>", text)[:2] == [*envs]
    learning = ["Return against frames", "Return of evaluations", "Return against time"]
    assert titles["Learning"] == [
        *(f"{name}, pushing:Env" for name in learning),
        *(f"{name}, CartPole-v1" for name in learning[::2]),
    ]
    names = "actor_loss approx_kl clip_fraction critic_loss entropy explained_variance learning_rate"
    assert titles["Training"] == [f"<code>{name}</code>, {env}" for env in envs for name in names.split()]
    assert titles["Throughput"] == [
        *("Frames per second, pushing:Env", "Frames per second against workers, pushing:Env"),
        "Frames per second, CartPole-v1",
    ]
    evaluated = ["<code>{}</code>, pushing:Env", "<code>{}</code> of evaluations, pushing:Env"]
    assert titles["Success rate"][:2] == [title.format("is_success") for title in evaluated]
    assert titles["Metrics"] == [title.format("pushed") for title in evaluated]
    assert (mixed / "is_success_evaluated-pushing_Env.png").exists()
    # The legend of the figure "Scaling" is no list of all options.
    scaling = figures["Frames per second against workers, pushing:Env"]
    assert "ideal" in scaling
    assert "learning_rate" not in scaling


@pytest.mark.ci
def test_a_phone_shows_the_returns_and_only_what_scrolls_is_too_wide(mixed, browse, tmp_path):
    (tmp_path / "page.html").write_text((mixed / "index.html").read_text().replace("</body>", f"{RIGHT}</body>"))
    done = {width: browse(tmp_path / "page.html", "--dump-dom", f"--window-size={width},900") for width in (500, 1280)}
    assert float(re.search('data-right="([^"]*)"', done[500].stdout)[1]) < 390
    over = {width: float(re.search('data-over="([^"]*)"', each.stdout)[1]) for width, each in done.items()}
    assert max(over.values()) <= 0
