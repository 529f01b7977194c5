"""This file knows about NCCL's choice on the screen: as text for a terminal, as markdown, as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sublight.comm.bus import bus_bytes
from sublight.comm.nccl import reasons
from sublight.comm.nccl.beside import Compared
from sublight.comm.nccl.choice import COLLECTIVES, NOT_IN_THE_MODEL, Choice, Model, choose, switches
from sublight.comm.nccl.compare import Changed, Difference
from sublight.comm.nccl.graph import PATH_CLASSES, PATTERNS
from sublight.comm.nccl.tuning import MEANING, wire_share
from sublight.work import Message

WIDTH = 80
MOST_ROWS = 16                           # of differences, on a screen
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
Table = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to show of a model."""

    title: str
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    op: str


@dataclass(frozen=True, slots=True)
class Against:
    """What differs in another model."""

    title: str
    graphs: tuple[Difference, ...]
    lines: tuple[Difference, ...]
    choices: tuple[Changed, ...]


@dataclass(frozen=True, slots=True)
class Logged:
    """What a log says beside the prediction. remarks: what to know before comparing."""

    remarks: tuple[str, ...]
    rows: tuple[Compared, ...]


def shown(model: Model, asked: Asked, against: Against | None, logged: Logged | None, form: str) -> str:
    """All of it in one of the forms "table", "md", "json"."""
    document = _document(model, asked, against, logged)
    if form == "json":
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    text = "\n".join(_text(document)) + "\n"
    return f"```text\n{text}```\n" if form == "md" else text


def nbytes(value: int) -> str:
    """As a person would write it: 64 KiB where it is even, else bytes."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << power and value % (1 << power) == 0:
            return f"{value >> power:,} {unit}"
    return f"{value:,} B"


def roughly(value: int) -> str:
    """Three digits in the largest unit."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << power:
            return f"{value / (1 << power):.3g} {unit}"
    return f"{value} B"


# ---- the document


def _document(model: Model, asked: Asked, against: Against | None, logged: Logged | None) -> dict[str, Any]:
    comm, searched = model.comm, model.searched
    functions = tuple(COLLECTIVES[name] for name in asked.collectives)
    return {
        "nccl": model.constants.version,
        "title": asked.title,
        "nodes": comm.nodes, "gpus_per_node": comm.local_ranks, "ranks": comm.ranks,
        "compute_capability": comm.sm_min / 10,
        "channels": comm.channels, "nvls_channels": comm.nvls_channels,
        "environment": dict(model.environment.given),
        "not_modelled": [name for name in model.environment.given if name in model.constants.other_variables],
        "graphs": [_graph(name, graph) for name, graph in searched.graphs.items()],
        "notes": list(searched.notes),
        "table": [_line(line) for line in model.lines.values() if line.function in functions and not line.off],
        "collectives": [_collective(model, name, asked) for name in asked.collectives],
        "sources": _sources(model, asked, functions),
        "off": [{"reason": rule.reason, "candidates": list(rule.names)}
                for rule in reasons.rules(model, functions, dtype=asked.dtype, op=asked.op)],
        "not_in_the_model": list(NOT_IN_THE_MODEL),
        **({"against": _against(against)} if against else {}),
        **({"log": _logged(logged)} if logged else {}),
    }


def _graph(name: str, graph: Any) -> dict[str, Any]:
    if graph.channels == 0:
        return {"name": name, "channels": 0}
    return {"name": name, "pattern": PATTERNS[graph.pattern], "channels": graph.channels,
            "gb_per_second_inside": float(graph.bw_intra), "gb_per_second_across": float(graph.bw_inter),
            "path_inside": PATH_CLASSES[graph.type_intra], "path_across": PATH_CLASSES[graph.type_inter]}


def _line(line: Any) -> dict[str, Any]:
    return {"collective": line.function, "algorithm": line.algorithm, "protocol": line.protocol,
            "latency_us": float(line.latency_us), "gb_per_second": float(line.bandwidth),
            "bandwidth_from": line.limit, "latency_from": line.steps}


def _sources(model: Model, asked: Asked, functions: tuple[str, ...]) -> list[dict[str, Any]]:
    """Where latency and bandwidth of every line that is taken at some size come from."""
    found = []
    for function in functions:
        kind = {"dtype": asked.dtype, "op": asked.op}
        first = choose(model, function, 1, **kind).best
        taken = dict.fromkeys([(first.algorithm, first.protocol),
                               *(s.after for s in switches(model, function, dtype=asked.dtype, op=asked.op))])
        for algorithm, protocol in taken:
            line = model.lines[function, algorithm, protocol]
            found.append({"candidate": f"{function} {algorithm}/{protocol}", "latency_us": float(line.latency_us),
                          "gb_per_second": float(line.bandwidth), "bandwidth_from": _wire(model, line),
                          "latency_from": line.steps})
    return found


def _wire(model: Model, line: Any) -> str:
    """The rate on the wire and the share of it that is message."""
    share = wire_share(model.comm, line.function, line.algorithm)
    return line.limit if share is None else f"({line.limit}) x {share}"


def _collective(model: Model, collective: str, asked: Asked) -> dict[str, Any]:
    function = COLLECTIVES[collective]
    kind = {"dtype": asked.dtype, "op": asked.op}
    found = switches(model, function, dtype=asked.dtype, op=asked.op)
    first = choose(model, function, 1, **kind)
    return {
        "collective": collective, **kind,
        "ranges": [{"from_bytes": 1, "takes": first.best.name, "why": reasons.because(model, first)},
                   *({"from_bytes": s.nbytes, "takes": "/".join(s.after),
                      "why": reasons.switching(model, function, s, **kind)} for s in found)],
        "sizes": [_size(model, collective, choose(model, function, size, **kind)) for size in asked.sizes],
    }


def _size(model: Model, collective: str, choice: Choice) -> dict[str, Any]:
    time, other = choice.best.time_us or 0.0, choice.runner_up
    bus = bus_bytes(Message(collective, model.comm.ranks, choice.nbytes)) or 0.0
    return {
        "bytes": choice.nbytes, "algorithm": choice.best.algorithm, "protocol": choice.best.protocol, "time_us": time,
        "bus_gb_per_second": bus / time / 1e3, "channels": choice.channels, "threads": choice.warps * 32,
        "mostly": reasons.decided_by(choice), "next": other.name if other else None,
        "next_time_us": other.time_us if other else None, "why": reasons.because(model, choice),
        "candidates": [{"name": c.name, "time_us": c.time_us, **({"off": c.off} if c.off else {})}
                       for c in choice.ranked],
    }


def _against(against: Against) -> dict[str, Any]:
    return {
        "title": against.title,
        "graphs": [_difference(d) for d in against.graphs], "table": [_difference(d) for d in against.lines],
        "choices": [{"collective": c.function, "from_bytes": c.first, "to_bytes": c.last, "here": "/".join(c.here),
                     "there": "/".join(c.there), "here_us": c.here_us, "there_us": c.there_us}
                    for c in against.choices],
    }


def _difference(difference: Difference) -> dict[str, str]:
    return {"what": difference.what, "here": difference.here, "there": difference.there}


def _logged(logged: Logged) -> dict[str, Any]:
    return {"remarks": list(logged.remarks),
            "compared": [{"what": r.what, "predicted": r.predicted, "logged": r.logged, "same": r.same}
                         for r in logged.rows]}


# ---- the text


def _text(document: dict[str, Any]) -> Iterable[str]:
    yield from textwrap.wrap(_headline(document), WIDTH)
    for name, value in document["environment"].items():
        left_out = " (NCCL reads it, this model does not)" if name in document["not_modelled"] else ""
        yield f"{name}={value}{left_out}"
    yield from ("", *_graphs_text(document["graphs"], document["nodes"] > 1))
    for note in document["notes"]:
        yield from textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    yield from ("", "Latency (µs) / bandwidth of the message (GB/s)", *_lines_text(document["table"]))
    for collective in document["collectives"]:
        yield from ("", *_collective_text(collective))
    yield from ("", "Where the figures of what is taken come from")
    for source in document["sources"]:
        yield from _item(f"{source['candidate']}: {source['gb_per_second']:.1f} GB/s from {source['bandwidth_from']}; "
                         f"{source['latency_us']:.1f} µs = {source['latency_from']}")
    yield from ("", "Off")
    for rule in document["off"]:
        yield from _item(f"{', '.join(rule['candidates'])}: {rule['reason']}")
    yield from _item(f"{', '.join(document['not_in_the_model'])}: not in NCCL's model; they run as send and receive "
                     "over p2p channels, without a choice")
    if "against" in document:
        yield from ("", *_against_text(document["against"]))
    if "log" in document:
        yield from ("", *_log_text(document["log"]))


def _headline(document: dict[str, Any]) -> str:
    nvls = f", {document['nvls_channels']} for NVLS" if document["nvls_channels"] else ""
    nodes = document["nodes"]
    gpus = f"{document['gpus_per_node']} GPUs" if document["gpus_per_node"] > 1 else "one GPU"
    where = f"{nodes} nodes of {gpus}" if nodes > 1 else f"{document['ranks']} GPUs, one node"
    return (f"NCCL {document['nccl']} on {document['title']}: {where}, compute capability "
            f"{document['compute_capability']:.1f}, {document['channels']} channels{nvls}")


def _item(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def columns(rows: Table, align: str) -> Iterable[str]:
    """Rows as aligned columns: "<" left, ">" right, one letter a column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _graphs_text(graphs: Sequence[dict[str, Any]], across_nodes: bool) -> Iterable[str]:
    """What one node has no use for is left out: NCCL logs a rate and a class there that it never looked for."""
    rows: Table = [("Graph", "pattern", "channels", "GB/s in", "across", "GPU-GPU", "GPU-NIC")]
    for graph in graphs:
        if graph["channels"]:
            inside, across = f"{graph['gb_per_second_inside']:g}", f"{graph['gb_per_second_across']:g}"
            rows.append((graph["name"], graph["pattern"], str(graph["channels"]), inside, across, graph["path_inside"],
                         graph["path_across"]))
        elif not graph["name"].startswith("collnet"):
            rows.append((graph["name"], "none", "0", "", "", "", ""))
    if not across_nodes:
        rows = [(*row[:4], row[5]) for row in rows]
    yield from columns(rows, "<<>>><<" if across_nodes else "<<>><")
    seen = {cell for row in rows[1:] for cell in row[4:]} & set(PATH_CLASSES)
    words = "; ".join(f"{name} {MEANING[name]}" for name in PATH_CLASSES if name in seen)
    yield from textwrap.wrap(f"GB/s of one channel. {words}", WIDTH)


def _lines_text(lines: Sequence[dict[str, Any]]) -> Iterable[str]:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        place = cells.setdefault((line["collective"], line["algorithm"]), {})
        place[line["protocol"]] = f"{line['latency_us']:.1f} / {line['gb_per_second']:.1f}"
    rows: Table = [("", "", "LL", "LL128", "Simple")]
    before = ""
    for (collective, algorithm), by_protocol in cells.items():
        rows.append(("" if collective == before else collective, algorithm,
                     *(by_protocol.get(p, "-") for p in ("LL", "LL128", "Simple"))))
        before = collective
    yield from columns(rows, "<<>>>")


def _collective_text(collective: dict[str, Any]) -> Iterable[str]:
    op = f", {collective['op']}" if collective["collective"] in REDUCING else ""
    yield f"{collective['collective']} of {collective['dtype']}{op}"
    for part in collective["ranges"]:
        yield from _item(f"from {nbytes(part['from_bytes'])}: {part['takes']}. {_sentence(part['why'])}")
    rows: Table = [("size", "takes", "µs", "bus", "ch", "mostly", "next", "slower")]
    for size in collective["sizes"]:
        slower = f"{(size['next_time_us'] / size['time_us'] - 1) * 100:.0f}%" if size["next_time_us"] else ""
        rows.append((nbytes(size["bytes"]), f"{size['algorithm']}/{size['protocol']}", f"{size['time_us']:,.0f}" if
                     size["time_us"] >= 1e4 else f"{size['time_us']:,.1f}", f"{size['bus_gb_per_second']:.1f}",
                     str(size["channels"]), size["mostly"], size["next"] or "", slower))
    lines = list(columns(rows, "><>>><<>"))
    if max(map(len, lines)) > WIDTH:                 # the first column to go
        lines = list(columns([(*row[:5], *row[6:]) for row in rows], "><>>><>"))
    yield from lines
    if len(collective["sizes"]) == 1:
        yield from _ranking(collective["sizes"][0])


def _ranking(size: dict[str, Any]) -> Iterable[str]:
    """All candidates at one size, where only one is asked for."""
    best, *others = (c for c in size["candidates"] if c["time_us"] is not None)
    ranked = [f"{best['name']} {best['time_us']:,.1f} µs",
              *(f"{c['name']} {(c['time_us'] / best['time_us'] - 1) * 100:+.0f} %" for c in others)]
    yield from _item(f"ranking: {', '.join(ranked)}. {_sentence(size['why'])}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _against_text(against: dict[str, Any]) -> Iterable[str]:
    yield f"Against {against['title']}"
    if not (against["graphs"] or against["table"] or against["choices"]):
        yield "  nothing differs"
        return
    for title, rows in (("graphs", against["graphs"]), ("table", against["table"])):
        if rows:
            yield from columns([(title, "here", "there"), *((r["what"], r["here"], r["there"])
                                                             for r in rows[:MOST_ROWS])], "<<<")
            yield from _more(rows)
    if not against["choices"]:
        yield "The choices are the same at every size."
        return
    choices: Table = [("choices", "from", "to", "here", "there", "µs there")]
    for c in against["choices"][:MOST_ROWS]:
        choices.append((c["collective"], roughly(c["from_bytes"]), roughly(c["to_bytes"]), c["here"], c["there"],
                        f"{(c['there_us'] / c['here_us'] - 1) * 100:+.0f} %"))
    yield from columns(choices, "<>><<>")
    yield from _more(against["choices"])


def _more(rows: Sequence[Any]) -> Iterable[str]:
    if len(rows) > MOST_ROWS:
        yield f"… and {len(rows) - MOST_ROWS} more (--format json has all)"


def _log_text(log: dict[str, Any]) -> Iterable[str]:
    rows = log["compared"]
    same = sum(row["same"] for row in rows)
    yield f"Beside the log: {same} of {len(rows)} facts are as predicted" if rows else "Beside the log"
    for remark in log["remarks"]:
        yield from _item(remark)
    other = [row for row in rows if not row["same"]]
    if other:
        yield from columns([("", "predicted", "logged"), *((r["what"], r["predicted"], r["logged"])
                                                            for r in other[:MOST_ROWS])], "<<<")
        yield from _more(other)
