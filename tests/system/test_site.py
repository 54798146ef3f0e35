"""The site of the documentation in a real browser, from disk and over HTTP."""

import functools
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import debian

from collectx import __version__

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("site")]
ROOT = Path(__file__).parents[2]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=250)
    return folder


@pytest.fixture(params=["disk", "http"])
def address(site, request):
    """Serves the site and returns its address."""
    if request.param == "disk":
        yield site.as_uri()
        return
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def browse(folder, url, *flags):
    """Opens a page in Chromium; returns its elements, and what the console says."""
    flags = (*flags, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=10000")
    hosts = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    command = [debian("chromium", "chromium"), *flags, hosts, f"--user-data-dir={folder / 'profile'}", url]
    command += ["--dump-dom", "--enable-logging=stderr"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


# Lists the pages that scroll sideways on a phone, and those with a table that scrolls on a laptop, and says where the
# first part of the home page ends there.
_PROBE = """
<body><script>
async function opened(page, width, measure) {
  const frame = document.createElement("iframe")
  Object.assign(frame, {src: page, width, height: 800})
  document.body.append(frame)
  await new Promise(done => frame.onload = done)
  const result = measure(frame.contentDocument)
  frame.remove()
  return result
}
async function look(pages) {
  const wide = [], tables = []
  const scrolls = part => part.scrollWidth > part.clientWidth
  for (const page of pages) {
    if (await opened(page, 390, ({documentElement: root}) => scrolls(root))) wide.push(page)
    const some = page => [...page.querySelectorAll(".md-typeset__scrollwrap")].some(scrolls)
    if (await opened(page, 1280, some)) tables.push(page)
  }
  const end = await opened(pages[0], 1280, page => page.querySelector(".facts").getBoundingClientRect().bottom)
  document.body.textContent = JSON.stringify({wide, tables, end})
}
look(PAGES)
</script>
"""


@pytest.mark.nightly
def test_pages_fit_a_phone_and_the_home_page_a_screen(site, tmp_path):
    pages = [site / "index.html", *sorted({*site.rglob("*.html")} - {site / "index.html", site / "404.html"})]
    probe = tmp_path / "probe.html"
    probe.write_text(_PROBE.replace("PAGES", json.dumps([page.as_uri() for page in pages])))
    dom, _ = browse(tmp_path, probe.as_uri(), "--allow-file-access-from-files")
    found = json.loads(re.search(r"<body>(\{.*\})", dom, re.DOTALL)[1])
    assert found["wide"] == found["tables"] == []
    assert 300 < found["end"] < 800


@pytest.mark.parametrize(("word", "page"), [("heartbeat", "index.html"), ("checkpoint", "how-to/resume.html")])
def test_the_search_finds_pages(address, tmp_path, word, page):
    dom, complaints = browse(tmp_path, f"{address}/reference/commands.html?q={word}", "--window-size=1280,900")
    assert not complaints
    assert re.search(r'data-md-component="search" role="dialog">', dom)  # hidden where it does not work
    # Chromium's virtual time does not wait for a real worker.
    assert f"{address}/{page}?h=" in dom or address.startswith("http")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("learning%20rate", ["Configuration", "trainer.learning_rate"]),  # not "Learning curves"
        # Pages that say what to do come before those that only have the words.
        ("early%20stopping", ["Stop bad points early"]),
        ("ctrl-c", ["Stop a run"]),
        ("kill%20worker", ["Survive worker failures"]),
    ],
)
def test_the_page_that_a_search_means_comes_first(site, tmp_path, words, first):
    dom, _ = browse(tmp_path, f"{site.as_uri()}/index.html?q={words}", "--window-size=1280,900")
    headings = re.findall(r"<h([12])>(.*?)</h\1>.*?</article>", dom[dom.index('"md-search-result__item"') :], re.DOTALL)
    titles = [re.sub("<[^>]*>", "", heading) for _, heading in headings]
    assert titles[: len(first)] == first


def test_pages_ask_no_other_host_and_lead_to_pages(site):
    for path in {*site.rglob("*.html")} - {site / "404.html"}:
        text = path.read_text()
        assert not re.findall(r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]*stylesheet[^>]*https?:", text), (
            path
        )
        for target in re.findall(r'<a [^>]*href="([^"#?]+)', text):
            assert ":" in target or (path.parent / target).is_file(), (path, target)


def test_no_page_shows_the_markers_of_a_box(site):
    """A box whose text stands on the line of its marker is a paragraph, without a warning of MkDocs."""
    for path in site.rglob("*.html"):
        text = re.sub(r"<(code|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert "!!! " not in text, path


def test_the_menu_has_the_titles_of_the_pages(site):
    page = unescape((site / "index.html").read_text())
    menu = re.findall(r'md-ellipsis">\s*(.*?)\s*</span>', page, re.DOTALL)
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in ("STATUS.md", "index.md")]
    titles = [re.search(r"^# (.*)$", path.read_text(), re.MULTILINE)[1] for path in pages]
    assert [title for title in titles if title not in menu] == []


def test_the_copy_button_takes_commands_without_prompts_and_output(site):
    blocks = re.findall(r'data-copy="([^"]*)"', (site / "tutorials" / "first-run.html").read_text())
    texts = [unescape(block) for block in blocks]
    assert "collectx run debug=tiny hydra.run.dir=first" in texts
    assert not any(re.search(r"^\$ |^\.\.\.|wall_s", text, re.MULTILINE) for text in texts)


def test_a_hyphen_or_a_slash_breaks_no_word_of_a_terminal(site):
    page = (site / "how-to" / "halving.html").read_text()
    assert '<span class="whole">hydra/sweeper</span>' in page
    assert re.search(r'<span class="whole long">\S*interval\(1e-4,1e-1\)\)\S*</span>', page)


def test_the_values_of_an_option_are_one_list_and_named_once(site):
    page = (site / "reference" / "configuration.html").read_text()
    assert "<code>fork</code> or <code>null</code>" in page
    assert not re.search(r"or <code>\w+</code> or <code>", page)
    assert "Activation function of the hidden layers.</p>" in page


def text_of(path):
    return unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", "", path.read_text())))


def test_a_collector_has_a_signature_and_its_keywords_types_and_defaults(site):
    text = text_of(site / "reference" / "python" / "collectors.html")
    signature = (
        "MultiSyncCollector( create_env_fn, policy=None, *, frames_per_batch=200, total_frames=-1, **keywords, )"
    )
    assert signature in text
    assert "exploration_type (object, default: 'RANDOM' )" in text
    assert "policy_device (device | str | list | None, default: None )" in text
    assert not re.search(r"\((Any|CreateEnv|Devices|PerWorker)[,)]", text)


def test_what_the_files_lack_is_said_there_and_shown_here(site):
    for name, shown in (("configuration", "env.num_envs"), ("commands", "exit status"), ("names", "num_env_runners")):
        page = (ROOT / "docs/reference" / f"{name}.md").read_text()
        assert re.match(r"<!-- .* -->\n# .*\n\n\*Outside of the site ", page)
        text = text_of(site / "reference" / f"{name}.html")
        assert shown in text
        assert "Outside of the site " not in text


def test_changelog_and_contributing_are_pages(site):
    assert "Before you upgrade" in text_of(site / "changelog.html")
    assert 'href="explanation/architecture.html"' in (site / "contributing.html").read_text()


def test_the_commands_have_the_order_of_their_table(site):
    page = (site / "reference" / "commands.html").read_text()
    rows = re.findall(r'<td><a href="#(collectx-\w+)">', page)
    assert len(rows) >= 15
    assert re.findall(r'<h2 id="(collectx-\w+)">', page) == rows


def test_the_extras_are_documented():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \| [\d,]+ \|$", (ROOT / "docs/reference/extras.md").read_text(), re.M)
    assert [name for name, _ in rows] == [*extras]
    for name, packages in rows[:-1]:
        needed = [re.split(r"[>=<]", each)[0].replace("minari[arrow]", "minari") for each in extras[name]]
        assert re.findall(r"`(.*?)`", packages) == needed


def test_every_page_names_the_version_that_it_documents(site):
    for path in site.rglob("*.html"):
        foot = re.search(r'md-copyright__highlight">\s*(.*?)\s*</div>', path.read_text())
        assert foot, path
        assert re.fullmatch(rf"collectx {re.escape(__version__)}( and the unreleased changes since)?", foot[1])


@pytest.mark.parametrize(("heading", "since"), [("Unreleased", " and the unreleased changes since"), ("0.2.0", "")])
@pytest.mark.parametrize("url", [None, "https://lab.test/x"])
def test_the_site_takes_version_and_repository_from_the_package(tmp_path, monkeypatch, heading, since, url):
    spec = importlib.util.spec_from_file_location("generated", ROOT / ".ci" / "generated.py")
    generated = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generated)
    monkeypatch.setattr(generated, "_ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n")
    urls = "" if url is None else f'urls.Repository = "{url}"\n'
    (tmp_path / "pyproject.toml").write_text(f"[project]\n{urls}")
    config = SimpleNamespace(repo_url=None)
    generated.on_config(config)
    assert (config.copyright, config.repo_url) == (f"collectx {__version__}{since}", url)
