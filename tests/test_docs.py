"""The pages say what the program does: examples run, links lead somewhere, nothing is left out."""

from __future__ import annotations

import doctest
import os
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, shared

from sublight.comm.doctor import findings as doctor_findings
from sublight.comm.doctor.findings import DIAGNOSES
from sublight.comm.topology import lint
from sublight.comm.topology.lint import CHECKS
from sublight.explain import explain, findings, rank_findings
from sublight.explain.findings import FINDINGS
from sublight.explain.rank_findings import RANK_FINDINGS
from sublight.observe.read import read
from sublight.show.markdown import markdown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
FINDING_PAGES = sorted((DOCS / "findings").glob("SL*.md"))
WITH_EXAMPLES = ("explain", "demo", "budget", "idle", "bounds", "replay", "ranks", "quality", "json", "html",
                 "perfetto", "devices", "calibrate", "comm-topology", "comm-nccl", "comm-expect", "comm-doctor",
                 "comm-tuner", "comm-reports", "clusters", "models", "nsys", "explain-model", "steps", "predict",
                 "plan", "sweep", "stories", "serving", "serving-protocols", "training", "operator-times", "memory",
                 "engines", "diff", "pasted", "results", "logs", "record", "kernel-inspect", "kernel-gate",
                 "kernel-compare")
NEED_EXAMPLES = [*(DOCS / f"{name}.md" for name in WITH_EXAMPLES), *FINDING_PAGES]


make_docs = loaded(DOCS / "make_docs.py")
EXAMPLES = [example for page in PAGES for example in make_docs.examples(page)]


def named(value: Any) -> str:
    if isinstance(value, Path):
        return str(value.relative_to(ROOT))
    return f"{value.page.relative_to(ROOT)}:{value.line}"


# ---- examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples run: the small traces lie there."""
    path = tmp_path_factory.mktemp("examples")
    make_docs.prepare(path)
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_a_command_prints_what_its_page_shows(example: Any, folder: Path) -> None:
    assert example.expected.replace("...", "").strip(), "an output of dots alone cannot fail"
    got = make_docs.run(example.command, folder)
    checker = doctest.OutputChecker()
    assert checker.check_output(example.expected, got, FLAGS), f"$ {example.command}\n{got}"


@pytest.mark.parametrize("page", [p for p in PAGES if ">>>" in p.read_text("utf-8")], ids=named)
def test_python_examples_print_what_their_page_shows(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S))
    parsed = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert parsed.examples, "the examples are not in a block of python"
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(parsed, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("page", NEED_EXAMPLES, ids=named)
def test_a_page_that_must_have_an_example_has_one(page: Path) -> None:
    assert make_docs.examples(page) or ">>> " in page.read_text("utf-8"), f"{page.name} runs nothing"


@pytest.mark.parametrize("page", FINDING_PAGES, ids=named)
def test_the_example_of_a_finding_shows_the_finding(page: Path) -> None:
    printed = [example.expected for example in make_docs.examples(page)]
    printed += [example.want for example in doctest.DocTestParser().get_examples(page.read_text("utf-8"))]
    assert any(page.stem in text for text in printed)


@pytest.mark.parametrize("path", make_docs.traces(), ids=named)
def test_a_pasted_block_is_short(path: Path) -> None:
    assert 5 < len(markdown(explain(read(path))).splitlines()) <= 25


def test_a_wrong_output_is_noticed(folder: Path) -> None:
    got = make_docs.run("sublight explain exposed.json", folder)
    checker = doctest.OutputChecker()
    assert checker.check_output("...\nSL101 exposed communication  ≤ 2.000 ms\n...", got, FLAGS)
    assert not checker.check_output("...\nSL101 exposed communication  ≤ 2.001 ms\n...", got, FLAGS)


def test_only_the_program_itself_is_run(folder: Path) -> None:
    with pytest.raises(ValueError, match="sublight and python only"):
        make_docs.run("rm -r .", folder)


def test_the_example_traces_are_what_their_script_writes(tmp_path: Path) -> None:
    loaded(DOCS / "examples/make.py").main(tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.glob("*.json")} == {
        p.name: p.read_text() for p in (DOCS / "examples").glob("*.json")}


# ---- completeness


def test_every_finding_has_a_page_and_every_page_a_finding() -> None:
    everything: tuple[Any, ...] = (*FINDINGS, *RANK_FINDINGS, *CHECKS, *DIAGNOSES)
    packages = (findings, rank_findings, lint, doctor_findings)
    modules = {m.name for package in packages for m in pkgutil.iter_modules(package.__path__)}
    assert {str(module.__name__).rsplit(".", 1)[1] for module in everything} == modules
    assert {module.CODE for module in everything} == {page.stem for page in FINDING_PAGES}
    table = (DOCS / "findings/README.md").read_text("utf-8")
    for module in everything:
        assert f"[{module.CODE}]({module.CODE}.md)" in table
        heading = (DOCS / f"findings/{module.CODE}.md").read_text("utf-8").split("\n", 1)[0]
        assert heading == f"# {module.CODE}: {module.TITLE}"


def test_every_option_of_explain_is_on_its_page(folder: Path) -> None:
    text = make_docs.run("sublight explain --help", folder)
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    assert {"--device", "--window", "--format", "-o"} <= options
    page = (DOCS / "explain.md").read_text("utf-8")
    assert {option for option in options if f"`{option}" not in page} == set()


def test_every_idle_cause_and_every_owner_is_on_its_page() -> None:
    from sublight.budget import IDLE, PARTS

    budget, idle = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("budget", "idle"))
    assert [part for part in PARTS if f"`{part}`" not in budget] == []
    assert [part for part in IDLE if part.removeprefix("idle: ") not in idle] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    pages = [*DOCS.glob("*.md"), *DOCS.glob("design/*.md")]
    assert [p.name for p in pages if f"({p.relative_to(DOCS)})" not in index and p.name != "README.md"] == []


def test_every_family_of_what_ifs_is_on_its_page() -> None:
    from sublight.explain.whatif import GROUPS, parse

    page = (DOCS / "replay.md").read_text("utf-8")
    table = page.split("## What-ifs", 1)[1].split("**", 1)[0]
    asked = [text for row in re.findall(r"^\| (`.+?) \|", table, re.M) for text in re.findall(r"`(\w\S*=\S+)`", row)]
    assert len(asked) >= 8
    for text in asked:
        parse(text)
    assert {"compute", "communication", "copies"} <= {term.target for text in asked for term in parse(text)} <= {
        *GROUPS, "launch", "kernel:NAME"}


def test_every_category_of_the_taxonomy_is_on_its_page() -> None:
    from sublight.observe.kernel_name import CATEGORIES

    page = (DOCS / "kernels.md").read_text("utf-8")
    assert [category for category in CATEGORIES if f"`{category}`" not in page] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = page if not file else page.parent / file
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}"


def test_the_table_of_faults_names_tests_that_exist() -> None:
    text = (DOCS / "faults.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \|", text, re.M)
    assert [int(row) for row in rows] == list(range(1, 38))
    defined = "\n".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("test_*.py"))
    named_tests = re.findall(r"`(test_\w+)`", text)
    assert [name for name in named_tests if f"def {name}(" not in defined] == []
    for number, row in enumerate(re.findall(r"^\| \d+ \|.*$", text, re.M), 1):
        assert f"`test_fault_{number:02}_" in row or "not ours yet: " in row or "no test: " in row, row
        has_tests = f"def test_fault_{number:02}_" in defined
        assert has_tests == (f"`test_fault_{number:02}_" in row), f"row {number} and its tests disagree"


# ---- the README


def test_the_readme_is_short_and_begins_with_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 160
    assert re.findall(r"^    (.+)$", text, re.M)[:2] == ["make demo", "make test"]


@pytest.mark.heavy
def test_the_figures_of_the_readme_are_those_of_the_program() -> None:
    train = shared("kineto/h800_moe_ep64_train.json.gz")
    eager = shared("kineto/b200_vllm_tp8_eager.json.gz")
    h100, ranks = shared("kineto/h100_qwen15_05b.json.gz"), shared("kineto/v100_dlrm_8rank/dlrm_kineto")
    texts, picture = make_docs.made(str(train), str(eager), str(h100), str(ranks))
    text = (ROOT / "README.md").read_text("utf-8")
    assert set(texts) == set(re.findall(r"^<!-- (.+): made by docs/make_docs\.py -->$", text, re.M))
    assert {name: make_docs.between(text, name) for name in texts} == texts
    assert (DOCS / "pictures/h800.svg").read_text("utf-8") == picture
    assert (DOCS / "pictures/h800.html").read_text("utf-8") == make_docs.page(str(train))


def test_the_script_recomputes_the_figures_of_the_readme(tmp_path: Path) -> None:
    import gzip

    raw = tmp_path / "train.json"
    raw.write_bytes(gzip.decompress(shared("kineto/h800_moe_ep64_train.json.gz").read_bytes()))
    printed = make_docs.run(f"python {DOCS / 'check_h800.py'} {raw}", tmp_path)
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(printed.splitlines()) == 2
    for line in printed.splitlines():
        assert line in text


def test_nothing_of_the_place_where_it_was_written_is_in_the_pages() -> None:
    home = os.path.expanduser("~")  # noqa: PTH111
    for page in PAGES:
        text = page.read_text("utf-8")
        assert [word for word in ("/tmp/", "/home/", home + "/") if word in text] == [], page.name
