"""The page of an explanation: what is on it, that no name of a trace can do anything there, and how it behaves."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import chromium
import pytest
from conftest import KINETO, shared
from kineto import Kineto

from sublight.explain import Explained, Explanation, explain
from sublight.observe.read import read, read_all
from sublight.show.html import COLOURS, MOST_DEVICES, html
from sublight.show.lanes import KEYS

HOSTILE = (
    "<script>alert(1)</script>", "</script><script>alert(2)</script>", "<!--<script>", "\"'><svg onload=alert(4)>",
    "]]><img src=x onerror=alert(3)>", "kernel\u2028with\u2029lines", "\x00\x1b[31mred\x07", "&lt;b&gt;&amp;",
    "`${alert(5)}`", "\\u003cscript\\u003ealert(6)\\u003c/script\\u003e", "\u202egnp.exe", "名前<カーネル>",
    "\U0001f680", "x" * 10_000, "javascript:alert(7)", "</style></title></textarea><b>", "\\\"};alert(8);//",
)
BROWSER = pytest.mark.skipif(not chromium.PATH.exists(), reason=f"{chromium.PATH} is not there: install chromium")


class Page(HTMLParser):
    """What a browser would make of the text: elements, attributes, and the texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "h2": [], "h3": []}
        self.text: list[str] = []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in self.inside:
            self._open = tag
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inside[self._open][-1] += data
        if self._open not in ("script", "style"):
            self.text.append(data)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inside["script"][0])
        return found


def step_of_kernels(names: tuple[str, ...], *, rank: int = 0) -> Kineto:
    """One step: kernels back to back, 10 µs each, then a collective that nothing hides and a copy."""
    k = Kineto(rank=rank, world_size=4)
    k.step(1, 0, 1_000_000)
    for i, name in enumerate(names):
        t = 10_000 * i
        k.kernel(name, 100_000 + t, 110_000 + t, launch=(1_000 + 2 * i, 1_001 + 2 * i))
    t = 100_000 + 10_000 * len(names)
    k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", t, t + 50_000, stream=20, launch=(3_000, 3_100))
    k.memcpy("DtoH", t + 60_000, t + 70_000, launch=(3_200, 3_300))
    return k


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a trace whose kernels, calls and operators have hostile names."""
    k = step_of_kernels(HOSTILE)
    for i, name in enumerate(HOSTILE):
        k.op(name, 1_000 + i, 1_001 + i)
        k.annotate(name, 1_000 + i, 1_001 + i)
    return html(explain(read(k.write(tmp_path_factory.mktemp("hostile") / "trace.json"))))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a trace with three ordinary kernels."""
    names = ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "flash_fwd_kernel", "my_own_kernel")
    return html(explain(read(step_of_kernels(names).write(tmp_path_factory.mktemp("plain") / "trace.json"))))


def ranks(folder: Path, count: int) -> Explanation:
    paths = [step_of_kernels(("my_own_kernel",) * (1 + rank), rank=rank).write(folder / f"rank{rank}.json")
             for rank in range(count)]
    return explain(read_all(paths))


# ---------------------------------------------------------------- what is on it


def test_sections_in_order(plain: str) -> None:
    assert [h.split(" ")[0] for h in Page(plain).inside["h3"]] == [
        "Where", "Timeline", "Findings", "What", "Replay", "What", "Communication", "Kernels", "Steps", "The"]


def test_bars_sum_to_the_window_and_each_begins_where_the_last_ended(plain: str) -> None:
    rects = [a for tag, a in Page(plain).elements if tag == "rect"]
    beside = [r for r in rects if "g-communication" in str(r["class"])]
    bars = [r for r in rects if r not in beside]
    window = 30_000 + 50_000 + 20_000                        # kernels, collective, gap and copy
    assert sum(int(str(b["data-ns"])) for b in bars) == window
    at = 0.0
    for bar in bars:
        assert float(str(bar["x"])) == pytest.approx(10_000 * at / window, abs=0.1)
        at += int(str(bar["data-ns"]))


def test_hover_says_nanoseconds(plain: str) -> None:
    assert 'title="exposed communication: 50,000 ns"' in plain
    assert "<title>exposed communication: 50,000 ns</title>" in plain


def test_every_kernel_is_in_the_data(plain: str) -> None:
    data = Page(plain).data
    device = data["devices"][0]
    time = [c[0] for c in device["columns"]].index("time")
    assert sorted((data["names"][row[0][1]], row[time]) for row in device["rows"]) == [
        ("Memcpy DtoH (Device -> Pinned)", 10_000), ("flash_fwd_kernel", 10_000), ("my_own_kernel", 10_000),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 50_000), ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", 10_000)]


def test_the_timeline_owns_every_nanosecond_once(plain: str) -> None:
    line = Page(plain).data["devices"][0]["timeline"]
    lanes = {lane["name"]: lane for lane in line["lanes"]}
    owned = [lanes[n] for n in ("compute, by category", "exposed copies", "idle, by cause")]
    assert sum(sum(lane["d"]) for lane in owned) + 50_000 == line["span"] == 100_000
    assert sum(lanes["communication in flight"]["d"]) == 50_000
    assert [lane for lane in lanes if lane.startswith("stream")] == ["stream 7", "stream 20"]


def test_every_picture_has_its_table(plain: str) -> None:
    page = Page(plain)
    labels = [a.get("aria-label") for tag, a in page.elements if tag == "table"]
    assert labels == ["Where the window went", "Longest stretches without compute", "Refused verdicts",
                      "Replay of the dependencies", "What if", "Kernels and copies", "Steps"]


def test_nothing_is_loaded_from_anywhere(hostile: str, plain: str) -> None:
    for text in (hostile, plain):
        for _, attributes in Page(text).elements:
            assert not {"src", "srcset", "action", "data", "poster"} & set(attributes)
            assert str(attributes.get("href", "#")).startswith("#")
        assert "@import" not in text
        assert "url(" not in "".join(Page(text).inside["style"])


def test_the_same_input_gives_the_same_page(plain: str, tmp_path: Path) -> None:
    names = ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "flash_fwd_kernel", "my_own_kernel")
    assert html(explain(read(step_of_kernels(names).write(tmp_path / "trace.json")))) == plain


def test_every_owner_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(KEYS)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_several_devices_have_an_overview_and_a_strip(tmp_path: Path) -> None:
    text = html(ranks(tmp_path, 3))
    page = Page(text)
    labels = [a.get("aria-label") for tag, a in page.elements if tag == "table"]
    assert labels[:2] == ["Shares of the window by rank", "All devices"]
    cells = [a for tag, a in page.elements if tag == "td" and a.get("class") == "cell"]
    assert len(cells) == 3 * 3
    assert [a["id"] for tag, a in page.elements if tag == "details" and a.get("id")] == ["d0", "d1", "d2"]
    assert [a["id"] for tag, a in page.elements if tag == "details" and "open" in a] == ["d2"]


def test_many_devices_are_all_in_the_overview(tmp_path: Path) -> None:
    page = Page(html(ranks(tmp_path, MOST_DEVICES + 4)))
    assert len(page.data["devices"]) == MOST_DEVICES
    assert "4 devices are in the table above only" in "".join(page.text)
    assert len([a for tag, a in page.elements if tag == "td" and a.get("class") == "cell"]) == 3 * (MOST_DEVICES + 4)


def test_a_cpu_only_trace_has_a_page(tmp_path: Path) -> None:
    k = Kineto(device_name=None)
    k.op("aten::mm", 1_000, 5_000)
    k.op("<script>alert(1)</script>", 6_000, 9_000)
    page = Page(html(explain(read(k.write(tmp_path / "trace.json")))))
    assert [lane["name"] for lane in page.data["devices"][0]["timeline"]["lanes"]] == [
        "compute, by category", "idle, by cause"]


def test_what_later_readings_add_is_shown(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Change:
        what: str
        gain_ns: int
        error: float

    @dataclass(frozen=True)
    class More(Explained):
        what_ifs: tuple[Change, ...] = ()  # type: ignore[assignment]   # a stand-in with other fields

    explanation = explain(read(step_of_kernels(("k",)).write(tmp_path / "trace.json")))
    one = explanation.devices[0]
    more = More(one.view, one.findings, what_ifs=(Change("gemm=<2x>", 1_500_000, 0.021),))
    text = html(replace(explanation, devices=(more,)))
    assert "What if" in Page(text).inside["h3"]
    assert all(word in "".join(Page(text).text) for word in ("gemm=<2x>", "1.500 ms", "2.1 %"))


# ---------------------------------------------------------------- hostile names


def test_hostile_names_add_no_element(hostile: str, plain: str) -> None:
    """Tags and attributes are those of an ordinary page."""
    page, ordinary = Page(hostile), Page(plain)
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in ordinary.elements}
    assert {key for _, a in page.elements for key in a} == {key for _, a in ordinary.elements for key in a}
    assert len(page.inside["script"]) == 2
    assert page.inside["script"][1] == ordinary.inside["script"][1]


def test_the_data_holds_every_hostile_name(hostile: str) -> None:
    data = Page(hostile).data
    names = set(data["names"])
    for name in HOSTILE:
        if len(name) < 4_000:
            shown = re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", "\ufffd", name)
            assert shown in names, name
    assert any(name.endswith("… (10,000 characters)") for name in names)
    assert len(data["devices"][0]["rows"]) == len(set(HOSTILE)) + 2


def test_the_data_cannot_end_its_element(hostile: str) -> None:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile, re.S)
    assert script is not None
    assert not set("<>&\u2028\u2029") & set(script[1])


def test_the_page_is_ascii_without_control_characters(hostile: str, plain: str) -> None:
    for text in (hostile, plain):
        assert text.isascii()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", text)


def test_the_policy_allows_one_script_and_one_style_by_hash(hostile: str) -> None:
    page = Page(hostile)
    policy = next(str(a["content"]) for tag, a in page.elements
                  if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for kind, text in (("script", page.inside["script"][1]), ("style", page.inside["style"][0])):
        wanted = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{wanted}'"
    assert not any(key == "style" or key.startswith("on") for _, a in page.elements for key in a)


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("which", list(KINETO))
def test_the_page_of_a_real_trace_is_small(which: str) -> None:
    assert len(html(explain(read(shared(KINETO[which]))))) < 500_000


@pytest.mark.heavy
def test_a_page_stays_small_whatever_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More activities than a page draws, on more streams, of names that together are larger than a page may be."""
    monkeypatch.setattr("sublight.show.page_data.MOST_MARKS", 9_000)
    k = Kineto()
    for i in range(9_000):
        name = f"kernel_{i % 3_000:05}" + "<" * 1_000
        k.kernel(name, 2_000 * i, 2_000 * i + 300 + i % 1_500, stream=7 + i % 12, launch=(10 * i, 10 * i + 5))
    text = html(explain(read(k.write(tmp_path / "trace.json"))))
    assert len(text) < 5_000_000
    page = Page(text)
    line = page.data["devices"][0]["timeline"]
    assert line["left_out"] == 4
    assert sum(len(lane["d"]) for lane in line["lanes"]) <= 9_000
    assert line["grain"] > 0
    assert len(page.data["devices"][0]["rows"]) == 3_000


def test_thinning_keeps_long_stretches_exact_and_the_time_of_short_ones() -> None:
    import numpy as np

    from sublight.show.lanes import Marks

    start = np.array([0, 5, 7, 100, 103, 150], np.int64)
    end = np.array([4, 6, 9, 102, 104, 250], np.int64)
    marks = Marks.of(start, end, np.array([1, 2, 1, 2, 2, 3], np.int32)).thinned(50)
    assert [tuple(int(v) for v in row) for row in
            zip(marks.start_ns, marks.end_ns, marks.key, marks.count, marks.busy_ns, strict=True)] == [
        (0, 9, 1, 3, 7), (100, 104, 2, 2, 3), (150, 250, 3, 1, 100)]


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def opened(browser: chromium.Page, hostile: str, tmp_path: Path) -> chromium.Page:
    """The hostile page, loaded afresh."""
    path = tmp_path / "page.html"
    path.write_text(hostile)
    browser.problems.clear()
    browser.requests.clear()
    browser.open(path)
    browser.run("localStorage.clear()")
    browser.open(path)
    return browser


ROWS = "[...document.querySelectorAll('.kernels tbody tr')].map(r => r.children[%d].textContent)"
SORT = "[...document.querySelectorAll('.kernels th button')].find(b => b.textContent.startsWith('%s')).click()"


@BROWSER
def test_a_browser_has_nothing_to_complain_about(opened: chromium.Page) -> None:
    assert opened.run("document.querySelectorAll('.kernels tbody tr').length") == len(set(HOSTILE)) + 2
    opened.run("document.querySelectorAll('.kernels td.name button').forEach(b => b.click())")
    assert opened.run("document.querySelectorAll('.kernels code').length") == len(set(HOSTILE)) + 2
    assert opened.run("document.querySelectorAll('script').length") == 2
    assert opened.problems == []
    assert [url for url in opened.requests if not url.startswith("file:")] == []


@BROWSER
def test_the_policy_stops_a_script_that_got_in(opened: chromium.Page) -> None:
    opened.run("""{ const s = document.createElement('script'); s.textContent = 'window.ran = 1';
                    document.body.append(s);
                    document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.ran=2">') }""")
    opened.frame()
    assert opened.run("typeof window.ran") == "undefined"
    assert opened.problems


@BROWSER
def test_columns_sort_both_ways(opened: chromium.Page) -> None:
    times = opened.run(ROWS % 5)
    assert times[0] == "50.0 µs"
    opened.run(SORT % "time")
    assert opened.run(ROWS % 5)[-1] == "50.0 µs"
    opened.run(SORT % "name")
    up = opened.run(ROWS % 0)
    assert opened.run("document.querySelector('th[aria-sort]').textContent").startswith("name")
    opened.run(SORT % "name")
    assert opened.run(ROWS % 0) == up[::-1]
    assert opened.problems == []


@BROWSER
def test_the_filter_finds_text_and_counts(opened: chromium.Page) -> None:
    opened.run("""{ const f = document.querySelector('input'); f.value = 'ALLREDUCE';
                    f.dispatchEvent(new Event('input')) }""")
    assert opened.run(ROWS % 0) == ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"]
    assert opened.run("document.querySelector('.count').textContent").startswith("1 of ")


@BROWSER
def test_dark_mode_by_system_and_by_hand(opened: chromium.Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.run(ground) == "rgb(255, 255, 255)"
    opened.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    dark = opened.run(ground)
    assert dark != "rgb(255, 255, 255)"
    toggle = "document.getElementById('theme').click(); document.getElementById('theme').textContent"
    assert opened.run(toggle) == "theme: dark"
    opened.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]})
    assert opened.run(ground) == dark
    opened.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    assert opened.run(toggle) == "theme: light"
    assert opened.run(ground) == "rgb(255, 255, 255)"
    opened.run("window.old = true")
    opened.send("Page.reload")
    opened.until("!window.old && document.readyState === 'complete'")
    assert opened.run("document.getElementById('theme').textContent") == "theme: light", "not remembered"
    assert opened.problems == []


@BROWSER
def test_the_timeline_zooms_by_keys_wheel_and_drag_and_says_what_is_under_the_pointer(opened: chromium.Page) -> None:
    width = "+document.querySelector('.range').dataset.ns"
    whole = opened.run(width)
    opened.run("document.querySelector('canvas').focus()")
    opened.key("+")
    assert opened.run(width) == pytest.approx(whole / 2, rel=0.01)
    opened.key("0")
    assert opened.run(width) == whole
    x, y, w = opened.run("""(() => { const c = document.querySelector('canvas'); c.scrollIntoView({block: 'center'});
        const r = c.getBoundingClientRect(); return [r.left, r.top, r.width] })()""")
    opened.mouse("mouseWheel", x + w / 2, y + 40, deltaX=0, deltaY=-300)
    opened.frame()
    assert opened.run(width) < whole
    opened.key("0")
    opened.mouse("mousePressed", x + w / 4, y + 40, button="left", clickCount=1)
    opened.mouse("mouseMoved", x + w / 2, y + 40, button="left")
    opened.mouse("mouseReleased", x + w / 2, y + 40, button="left", clickCount=1)
    assert opened.run(width) == pytest.approx(whole / 4, rel=0.02)
    opened.key("0")
    found = []
    said = "(tip => tip.hidden ? '' : tip.textContent)(document.querySelector('.tip'))"
    for line in range(20, 260, 6):
        opened.mouse("mouseMoved", x + 3, y + line)
        found.append(opened.run(said))
    assert any("<script>alert\n10,000 ns" in text for text in found), found
    assert opened.problems == []


@BROWSER
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_never_wider_than_its_window(
    browser: chromium.Page, width: int, plain: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(plain)
    browser.open(path, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


@BROWSER
def test_sections_of_ranks_are_set_up_when_they_are_opened(browser: chromium.Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(html(ranks(tmp_path, 3)))
    browser.problems.clear()
    browser.open(path)
    assert browser.run("document.querySelectorAll('canvas').length") == 1
    browser.run("document.querySelector('td > a[href=\"#d0\"]').click()")
    browser.frame()
    assert browser.run("document.getElementById('d0').open")
    assert browser.run("document.querySelectorAll('canvas').length") == 2
    assert browser.problems == []


# ---------------------------------------------------------------- on the command line


@pytest.mark.parametrize("form", ["html", "perfetto"])
def test_a_terminal_is_refused_before_the_trace_is_opened(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sublight.cli import main

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["explain", "gone.json", "--format", form]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"sublight: --format {form} is not for a terminal; expected a file or a pipe: -o ")
