"""Two texts to measure quantisation with, out of Debian's package debian-handbook (CC-BY-SA / GPL; nothing of it is
kept here): every other section goes to test.txt, the rest to calibrate.txt.

    apt-get download debian-handbook && dpkg-deb -x debian-handbook_*.deb handbook
    python3 bench/quality/text.py handbook OUTDIR
"""
import html.parser
import pathlib
import re
import sys


class Paragraphs(html.parser.HTMLParser):
    BREAKS = ("p", "h1", "h2", "h3", "li")
    HIDDEN = ("script", "style", "head", "pre")

    def __init__(self):
        super().__init__()
        self.out, self.text, self.hidden = [], [], 0

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in self.HIDDEN
        if tag in self.BREAKS:
            self.flush()

    def handle_endtag(self, tag):
        if tag in self.HIDDEN:
            self.hidden = max(0, self.hidden - 1)
        if tag in self.BREAKS:
            self.flush()

    def handle_data(self, data):
        if not self.hidden:
            self.text.append(data)

    def flush(self):
        text = re.sub(r"\s+", " ", "".join(self.text)).strip()
        self.text = []
        if len(text) > 80:
            self.out.append(text)


parts, seen = ([], []), set()
for i, path in enumerate(sorted(pathlib.Path(sys.argv[1]).rglob("en-US/*.html"))):
    page = Paragraphs()
    page.feed(path.read_text(encoding="utf-8", errors="ignore"))
    page.flush()
    for text in page.out:
        if text not in seen:
            seen.add(text)
            parts[i % 2].append(text)
for name, part in zip(("test", "calibrate"), parts):
    pathlib.Path(sys.argv[2], name + ".txt").write_text("\n\n".join(part) + "\n", encoding="utf-8")
