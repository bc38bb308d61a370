"""Taking the pages and pictures of reports apart, for their tests."""

from html.parser import HTMLParser
from xml.etree import ElementTree

FIGURES = ("throughput", "batch_times", "memory", "shares", "stages")
MIXTURES = ("mixture_over_time", "mixture_windows_every_stride")
HOSTILE = ("<script>alert(1)</script>", 'a&b"c', "it's\x00\x1b[31m", "up\u202edown", "\ud800")


class Page(HTMLParser):
    """Elements, attributes and words of a page, as a browser would take them apart."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def svg_files(folder):
    return sorted(folder.rglob("*.svg"))


def parsed(path):
    root = ElementTree.fromstring(path.read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return root


def texts(root):
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
