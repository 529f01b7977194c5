"""What engines take by themselves, the tables of their flags, and the texts that commands are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.engines import ENGINES, default, defaults
from sublight.engines.arithmetic import evaluated
from sublight.engines.flags import ENDLESS, numbers, table
from sublight.engines.options_file import flat, nested, parsed, written
from sublight.engines.shell import quoted, read
from sublight.errors import InputError
from sublight.plan import Serving, Training

GIB = 2**30
SERVING = ("vllm", "sglang", "trtllm")


# ---- what an engine takes by itself


@pytest.mark.parametrize(("version", "memory_gib", "device", "budget", "sequences", "share"), [
    ("0.6.6", 80, "NVIDIA H100", 2048, 256, 0.9),
    ("0.8.3", 80, "NVIDIA H100", 8192, 1024, 0.9),
    ("0.8.5", 80, "NVIDIA A100-SXM4-80GB", 8192, 1024, 0.9),
    ("0.9.0", 80, "NVIDIA A100-SXM4-80GB", 2048, 256, 0.9),
    ("0.11.0", 80, "NVIDIA H100", 8192, 1024, 0.9),
    ("0.19.0", 24, "NVIDIA L4", 2048, 256, 0.9),
    ("0.20.0", 180, "NVIDIA B200", 8192, 1024, 0.92),
    ("0.33.0", 180, "NVIDIA B200", 16384, 1024, 0.92),
])
def test_defaults_of_vllm(
    version: str, memory_gib: int, device: str, budget: int, sequences: int, share: float,
) -> None:
    plan = defaults(Serving(engine="vllm", version=version), memory_bytes=memory_gib * GIB, device=device)
    assert (plan.token_budget, plan.max_sequences, plan.memory_fraction) == (budget, sequences, share)


def test_a_default_gives_way_to_what_is_said() -> None:
    plan = defaults(Serving(engine="vllm", token_budget=512, memory_fraction=0.5), memory_bytes=80 * GIB, device="h100")
    assert (plan.token_budget, plan.max_sequences, plan.memory_fraction) == (512, 512, 0.5)
    whole = Serving(engine="vllm", version="0.6.6", chunked_prefill=False, max_length=4096)
    assert defaults(whole, memory_bytes=80 * GIB).token_budget == 4096


@pytest.mark.parametrize(("version", "mib", "plan", "budget", "share"), [
    ("0.4.0", 81559, Serving(tp=8), 8192, 0.81),
    ("0.4.6.post5", 143771, Serving(tp=8), 8192, 1 - 18432 / 143771),
    ("0.4.10", 81559, Serving(tp=8), 8192, round(1 - (9.5 + 4) * 1024 / 81559, 3)),
    ("0.5.9", 81559, Serving(tp=8), 8192, round(1 - (512 + 8192 * 1.5 + 512 * 2 + 1024) / 81559, 3)),
    ("0.5.9", 81559, Serving(tp=1, token_budget=2048), 2048, round(1 - 10240 / 81559, 3)),
    ("0.5.9", 143771, Serving(dp=8, ep=8), 1024,
     round(1 - (512 + 8192 * 1.5 + 512 * 2 + 1024 + 512 * 8 * 4.5) / 143771, 3)),
    ("0.5.12", 183359, Serving(tp=8, drafts=3), 16384,
     round(1 - (512 + 16384 * 1.5 + 512 * 2 + 1024 + 74 * 8 + 4096) / 183359, 3)),
])
def test_defaults_of_sglang(version: str, mib: int, plan: Serving, budget: int, share: float) -> None:
    filled = defaults(replace(plan, engine="sglang", version=version), memory_bytes=mib * 2**20)
    assert filled.token_budget == budget
    assert filled.memory_fraction == pytest.approx(share, abs=1e-9)


def test_defaults_of_tensorrt_llm_need_no_device() -> None:
    plan = defaults(Serving(engine="trtllm", version="1.1.0", tp=8))
    assert (plan.token_budget, plan.max_sequences, plan.memory_fraction) == (8192, 2048, 0.9)


def test_a_default_that_depends_on_the_device_asks_for_it() -> None:
    with pytest.raises(InputError, match="depend on the device's memory: give memory_bytes"):
        defaults(Serving(engine="sglang"))


def test_graphs_that_the_command_limits() -> None:
    plan = Serving(engine="sglang", version="0.5.9", tp=8, extra=(("--cuda-graph-max-bs", "64"),))
    assert default(plan, "graph_batch", memory_bytes=80 * GIB).value == 64
    assert default(replace(plan, extra=()), "graph_batch", memory_bytes=80 * GIB).value == 512


# ---- the data


@pytest.mark.parametrize("engine", ENGINES)
def test_flags_say_what_a_plan_has(engine: str) -> None:
    known = table(engine)
    fields = set(Serving.__dataclass_fields__) | set(Training.__dataclass_fields__)
    module = __import__(f"sublight.engines.{engine}", fromlist=["x"])
    source = Path(str(module.__file__)).read_text("utf-8") + Path(
        str(module.__file__)).with_name("read_command.py").read_text("utf-8")
    for row in known.rows:
        assert row.since < row.until, row.name
        assert row.sets is None or row.sets in fields or f'"{row.sets}"' in source, f"nothing reads {row.sets}"
        for other in known.all_named(row.name):
            overlap = max(row.since, other.since) < min(row.until, other.until)
            assert other is row or not overlap, f"{row.name} has two meanings in one version"
    assert known.facts["program"]


@pytest.mark.parametrize("engine", SERVING)
def test_every_default_has_a_source(engine: str) -> None:
    rows = table(engine).own
    assert {"token_budget", "max_sequences", "memory_fraction"} <= {row["field"] for row in rows}
    assert all(row["source"] and ("value" in row or "reserve" in row) for row in rows)


def test_versions_are_numbers() -> None:
    assert numbers("v0.5.9.post1") < numbers("0.5.10") < numbers(None) < ENDLESS
    assert numbers("latest") == numbers(None)
    with pytest.raises(InputError, match="a version like"):
        numbers("newest")


def test_the_page_has_the_table_of_the_data() -> None:
    root = Path(__file__).parent.parent / "docs"
    lines = "\n".join(loaded(root / "engines_table.py").lines())
    assert lines in (root / "engines.md").read_text("utf-8"), "run docs/engines_table.py and paste its table again"


# ---- shell, arithmetic, options files


def test_words_of_a_shell_text() -> None:
    script = read("A='x y' # no\nf \"$A\" $A ${B:-2} $((2*3)) \\\n  end > o.txt 2>&1; g 'it''s'")
    assert [command.words for command in script.commands if command.words] == [
        ("f", "x y", "x", "y", "2", "6", "end"), ("g", "its")]


def test_conditions_are_not_evaluated() -> None:
    script = read("N=1\nif [ $Q ]; then N=2; fi\nf $N")
    assert (script.commands[-1].words, script.doubtful) == (("f", "1"), True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab \"'\\$(){}#;&\n=", max_size=12).filter(
    lambda word: "$" not in word), min_size=1, max_size=4))
def test_a_quoted_word_reads_as_it_was(words: list[str]) -> None:
    assert read(" ".join(["f", *map(quoted, words)])).commands[0].words == ("f", *words)


@pytest.mark.parametrize(("text", "value"), [
    ("1+2*3", "7"), ("(1+2)*3", "9"), ("-7/2", "-3"), ("7 % 4", "3"), ("A>2 ? A : 2", "5"), ("A == 5 && 0", "0"),
    ("1/0", None), ("B", None), ("2**3", None), ("$(x)", None), ("9" * 13, None), ("", None), ("1 2", None),
])
def test_arithmetic(text: str, value: str | None) -> None:
    assert evaluated(text, {"A": "5"}) == value


JSONS: Any = st.recursive(st.none() | st.booleans() | st.integers(-99, 99) | st.text(alphabet="ab: #'\"-", max_size=6),
                          lambda inner: st.lists(inner, max_size=3), max_leaves=4)
MAPS: Any = st.recursive(st.dictionaries(st.text(alphabet="abc_", min_size=1, max_size=4), JSONS, max_size=3),
                         lambda inner: st.dictionaries(st.text(alphabet="abc_", min_size=1, max_size=4),
                                                       inner | JSONS, max_size=3), max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(MAPS)
def test_an_options_file_reads_as_it_was_written(value: dict[str, Any]) -> None:
    assert parsed(written(value)) == value
    assert nested(list(flat(value).items())) == value


def test_blocks_of_an_options_file() -> None:
    text = "a:\n- 1\n- two\nb:\n  - x: 1\n    y: [3, 'f']\nc: {d: {e: off}}\n# end\n---\n'q r': \"s # t\""
    assert parsed(text) == {"a": [1, "two"], "b": [{"x": 1, "y": [3, "f"]}], "c": {"d": {"e": False}}, "q r": "s # t"}


@pytest.mark.parametrize("text", ["a: &x 1", "a: |\n  b", "nothing", "a: 1\n   b: 2", "a: [1,\n 2]", "- 1\n- 2"])
def test_parts_of_yaml_that_are_not_read_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="options file"):
        parsed(text)
