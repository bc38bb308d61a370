"""Taking the pages and pictures of reports apart, for their tests."""

import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

FIGURES = ("throughput", "batch_times", "memory", "shares", "stages")
MIXTURES = ("mixture_over_time", "mixture_windows_every_stride")
HOSTILE = (
    "<script>alert(1)</script>",
    'a&b"c',
    "it's\x00\x1b[31m",
    "up\u202edown",
    "\ud800",
    "$x$",
)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)


class Page(HTMLParser):
    """Elements, attributes and words of a page, as a browser would take them apart."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.words, self.attributes, self.figures = [], [], [], []
        self.source = path.read_text("utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "figure":
            self.figures.append(dict(attrs)["id"])

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


def svg_files(folder):
    return sorted(folder.rglob("*.svg"))


def parsed(text):
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("viewBox")
    assert root.get("aria-label") is not None
    return root


def texts(plot):
    root = parsed(plot.svg.file())
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def browse(page, folder, *options, size=(1200, 4200)):
    """What Chromium prints for a page; nothing is fetched from elsewhere."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={size[0]},{size[1]}", *options, page.resolve().as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout.decode("utf-8")
