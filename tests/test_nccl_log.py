"""What an NCCL_DEBUG=INFO log says of a communicator, and how it stands beside the prediction.

The lines have the form that NCCL 2.30.7 prints (src/graph/search.cc, src/graph/tuning.cc, src/init.cc, src/enqueue.cc);
older forms are those of logs in public issues (NVIDIA/nccl 1453 and 1519, nccl-tests 89).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import shared
from nccl import tuned

from sublight.cli import main
from sublight.comm.nccl import beside
from sublight.comm.nccl.choice import Model, choose
from sublight.comm.nccl.graph import PATH_CLASSES
from sublight.errors import InputError
from sublight.observe.nccl_log import NcclLog, parse, read_log

BLOCKS = (("Tree", "Ring", "CollNetDirect"), ("CollNetChain", "NVLS", "NVLSTree"), ("PAT",))
PROTOCOLS = ("LL", "LL128", "Simple")


def printed(model: Model, *, who: str = "secret-host-17:4242:4300", version: str = "2.30.7") -> list[str]:
    """The lines that rank 0 would print for this model."""
    comm = model.comm
    lines = [f"comm 0x55 rank 0 nRanks {comm.ranks} nNodes {comm.nodes} localRanks {comm.local_ranks} localRank 0 "
             "MNNVL 0"]
    graphs = [f"Pattern {g.pattern}, crossNic 0, nChannels {g.channels}, bw {g.bw_intra:f}/{g.bw_inter:f}, "
              f"type {PATH_CLASSES[g.type_intra]}/{PATH_CLASSES[g.type_inter]}, sameChannels 0"
              for g in model.searched.graphs.values()]
    table = []
    for block in BLOCKS:
        table.append("  Algorithm   |" + "".join(f" {'':>14}   {a:>14}   {'':>14} |" for a in block))
        table.append("  Protocol    |" + "".join(f" {p:>14} |" for _ in range(3) for p in PROTOCOLS))
        table.append(" Max NThreads |" + "".join(f" {512:>14} |" for _ in block for _ in PROTOCOLS))
        for function in model.constants.functions:
            cells = (model.lines.get((function, a, p)) for a in block for p in PROTOCOLS)
            table.append(f"{function:>13} |" + "".join(
                f"{line.latency_us if line else 0:8.1f}/{line.bandwidth if line else 0:6.1f} |" for line in cells))
    end = [f"{comm.channels} coll channels, {comm.channels} collnet channels, {comm.nvls_channels} nvls channels, "
           "32 p2p channels, 2 p2p channels per peer"]
    spoken = [f"{who} [0] NCCL INFO {line}" for line in (*graphs, *lines, *table, *end)]
    return [f"NCCL version {version}+cuda13.0", *spoken]


def said(function: str, nbytes: int, algorithm: str, protocol: str) -> str:
    return (f"secret-host-17:4242:4242 [0] NCCL INFO {function}: {nbytes} Bytes -> Algo {algorithm} proto {protocol} "
            "channel{Lo..Hi}={0..15}")


def compared(model: Model, log: NcclLog) -> list[beside.Compared]:
    comm = log.communicators[0]
    graphs = [(g.pattern, g.channels, g.bw_intra, g.bw_inter, g.type_intra, g.type_inter) for g in comm.graphs]
    choices = [(c.function or "AllReduce", c.nbytes, c.algorithm, c.protocol) for c in comm.choices]
    return [*beside.graphs_beside(model, graphs), *beside.channels_beside(model, comm.channels, comm.nvls_channels),
            *beside.table_beside(model, comm.lines), *beside.choices_beside(model, choices, dtype="fp16", op="sum")]


def test_a_log_of_the_model_itself_agrees_in_every_fact() -> None:
    model = tuned(nodes=4)
    best = choose(model, "AllReduce", 1 << 30).best
    lines = [*printed(model), said("AllReduce", 1 << 30, best.algorithm.upper(), best.protocol.upper())]
    rows = compared(model, parse(lines))
    assert len(rows) > 20
    assert [row for row in rows if not row.same] == []


def test_a_log_of_another_job_disagrees_where_it_differs() -> None:
    rows = compared(tuned(nodes=4), parse(printed(tuned(nodes=4, cpu=("x86_64", "AuthenticAMD")))))
    assert {row.what for row in rows if not row.same} >= {"AllReduce Ring/LL", "AllGather Ring/Simple"}
    assert all(row.same for row in rows if row.what.startswith("graph"))


def test_ranks_may_be_mixed_and_prefixed_by_a_launcher() -> None:
    model = tuned(nodes=2)
    one, two = printed(model), printed(model, who="other:7:8")[1:]
    mixed = [line for pair in zip(one[1:], two, strict=True) for line in pair]
    log = parse(["[1,0]<stdout>:" + line for line in [one[0], *mixed]])
    assert len(log.communicators) == 1
    assert log.communicators[0].lines == parse(one).communicators[0].lines
    assert len(log.communicators[0].graphs) == 3


def test_sizes_are_those_of_nccl_tests_whatever_part_nccl_prints() -> None:
    log = parse([*printed(tuned(nodes=4)), said("AllGather", 1 << 20, "RING", "LL128"),
                 said("AllReduce", 1 << 20, "COLLNET_DIRECT", "SIMPLE"),
                 "h:1:2 [0] NCCL INFO 8589934592 Bytes -> Algo 1 proto 2 time 86069.968750"])
    got = [(c.function, c.nbytes, c.algorithm, c.protocol, c.time_us) for c in log.communicators[0].choices]
    assert got == [("AllGather", 32 << 20, "Ring", "LL128", None),
                   ("AllReduce", 1 << 20, "CollNetDirect", "Simple", None),
                   (None, 8589934592, "Ring", "Simple", 86069.96875)]


def test_the_wide_table_of_old_versions_is_read() -> None:
    who = "n129:1802:1851 [0] NCCL INFO"
    log = parse([f"{who} comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0",
                 f"{who} Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |",
                 f"{who}  Max NThreads |            512 |            640 |            512 |            512 |",
                 f"{who}     AllReduce |    19.6/   1.1 |    46.0/   0.0 |   116.0/   4.5 |    38.6/   1.5 |"])
    assert log.communicators[0].lines["AllReduce", "Tree", "Simple"] == (116.0, 4.5)
    assert log.communicators[0].lines["AllReduce", "Ring", "LL"] == (38.6, 1.5)


def test_variables_show_switches_and_hide_the_rest() -> None:
    who = "h:1:2 [0] NCCL INFO"
    log = parse([f"{who} NCCL_ALGO set by environment to Ring,Tree", f"{who} NCCL_CROSS_NIC set by environment to 2.",
                 f"{who} NCCL_TOPO_FILE set by environment to /home/anna/topo.xml", "NCCL version 2.27.3+cuda12.9",
                 f"{who} NCCL_SOCKET_IFNAME set by environment to eth7",
                 f"{who} NCCL_DEBUG_FILE set by environment to /x"])
    assert log.variables == {"NCCL_ALGO": "Ring,Tree", "NCCL_CROSS_NIC": "2", "NCCL_TOPO_FILE": None,
                             "NCCL_SOCKET_IFNAME": None, "NCCL_DEBUG_FILE": None}
    assert log.version == "2.27.3"


def test_two_communicators_of_one_process_are_kept_apart_and_choices_then_belong_to_none() -> None:
    whole, half = printed(tuned(nodes=4)), printed(tuned(nodes=2))[1:]
    log = parse([*whole, *half, said("AllReduce", 1 << 20, "RING", "LL")])
    assert [(c.ranks, c.nodes, bool(c.lines)) for c in log.communicators] == [(32, 4, True), (16, 2, True)]
    assert all(c.choices == () for c in log.communicators)


def test_a_file_without_nccl_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    with pytest.raises(InputError, match="no lines of NCCL"):
        read_log(str(tmp_path / "x.log"))
    with pytest.raises(InputError, match="cannot read"):
        read_log(str(tmp_path / "absent.log"))


def test_the_command_puts_a_log_beside_its_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from test_nccl_tuning import on_shared

    lines = printed(on_shared("h100", 8, 4), version="2.27.3")
    lines.append("h:1:2 [0] NCCL INFO NCCL_PROTO set by environment to Simple")
    (tmp_path / "info.log").write_text("\n".join(lines))
    arguments = ["comm", "nccl", str(shared("comm/synthetic_h100_8.xml")), "--log", str(tmp_path / "info.log")]
    assert main([*arguments, "--nodes", "4"]) == 0
    text = capsys.readouterr().out
    for words in ("facts are as predicted", "the log is of NCCL 2.27.3", "NCCL_PROTO=Simple"):
        assert words in " ".join(text.split())
    assert "secret" not in text
    assert main([*arguments, "--nodes", "2"]) == 2
    assert "the log has 32 ranks on 4 nodes" in capsys.readouterr().err
