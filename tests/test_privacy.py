"""What a file carries beside its events never reaches an output or an error: what is shown is an allow-list.

A trace is filled with secrets, each with a marker of its own, everywhere that real files have carried some: free
metadata, arguments, names of hosts, processes, threads and users, command lines, paths, tokens. Then it is damaged
in many ways. No marker may appear in any format, nor in any error. Kernel, copy and operator names are shown by
design, so none of them holds a secret here; names of annotations that are not step marks are never shown.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kineto import Kineto

from sublight.cli import main

FORMATS = ("table", "json", "md", "svg", "html", "perfetto")
SHAPES = (
    "hf_{}", "ghp_{}", "AKIA{}", "sk-proj-{}", "/home/{}/run", "{}.cluster.example", "python train.py --key={}",
    "WANDB_API_KEY={}", "user {}", "{}", "eyJhbGciOi.{}.sig", "https://u:{}@host/path?q=1",
)


class Secrets:
    """Hands out markers, each of letters only or as a number, and in the shape of something that leaks."""

    def __init__(self) -> None:
        self.markers: dict[str, str] = {}

    def __call__(self, where: str) -> str:
        n = len(self.markers)
        marker = "zq" + "".join("ghijklmnop"[int(d)] for d in f"{n:03d}") + "xv"
        self.markers[marker] = where
        return SHAPES[n % len(SHAPES)].format(marker)

    def number(self, where: str) -> int:
        marker = f"8675309{len(self.markers):03d}"
        self.markers[marker] = where
        return int(marker)


def full_of_secrets(secret: Secrets, *, cpu_only: bool = False) -> dict[str, Any]:
    """A trace of two steps whose every free place holds a secret."""
    k = Kineto(device_name=None if cpu_only else "NVIDIA H100 80GB HBM3", record_shapes=True, flows=True)
    for step in range(2):
        t = 1_000_000 * step
        more: dict[str, Any] = {
            "Concrete Inputs": [secret("op Concrete Inputs"), ""], "env": secret("op env"),
            "Call stack": secret("op call stack"), "Module Hierarchy": secret("op module hierarchy"),
        }
        op = k.op("aten::mm", t + 1_000, t + 90_000, dims=[[64, 64], [64, 64]], **more)
        group: dict[str, Any] = {
            "Process Group Description": secret("group description"),
            "Process Group Name": secret("group name"), "Process Group Ranks": secret("group ranks"),
        }
        if not cpu_only:
            k.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", t + 100_000, t + 400_000,
                     launch=(t + 10_000, t + 20_000), op=op, host=secret("kernel host"), token=secret("kernel token"))
            k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", t + 300_000,
                     t + 600_000, stream=20, launch=(t + 30_000, t + 40_000), **group)
            k.memcpy("DtoH", t + 700_000, t + 750_000, launch=(t + 50_000, t + 60_000))
            k.call("cudaDeviceSynchronize", t + 65_000, t + 800_000)
            k.gpu_annotate(secret("gpu annotation"), t + 100_000, t + 600_000)
        k.annotate(secret("annotation"), t + 500, t + 95_000)
        k.annotate(f"gloo:{secret('annotation like a collective')}", t + 91_000, t + 93_000, thread=2)
        k.annotate(f"step[{secret('annotation like a step')}]", t + 500, t + 95_000)
        k.annotate(f"ProfilerStep#{step} {secret('annotation like a step, too')}", t + 400, t + 95_000)
        k.step(step, t, t + 96_000)
    k.overhead(secret("overhead name"), 2_000, 3_000)
    for kind in ("process_name", "process_labels", "thread_name"):
        args = {"name": secret(kind), "labels": secret(kind)}
        k.raw({"name": kind, "ph": "M", "ts": 0, "pid": 4242, "tid": 4242, "args": args})
    for category in ("python_function", "cpu_instant_event", "Trace", "new_category", secret("category"), "cuda_sync"):
        k.raw({"ph": "X", "cat": category, "name": secret(f"name of a {category}"), "pid": secret("pid"),
               "tid": secret("tid"), "ts": 5, "dur": 1,
               "args": {"Python module": secret("module"), "path": secret("path")}})
    k.raw({"ph": secret("phase"), "cat": "kernel", "name": secret("name of no phase"), "pid": 0, "tid": 7, "ts": 5})
    k.raw({"name": secret("instant"), "ph": "i", "s": "g", "pid": secret("pid"), "tid": secret("tid"), "ts": 1})
    doc: dict[str, Any] = k.document()
    for row in doc["deviceProperties"]:
        row |= {"uuid": secret("device uuid"), "pci": secret("device pci"), "host": secret("device host")}
    doc["distributedInfo"] |= {
        "backend": secret("backend"), "pg_config": [{"pg_name": secret("pg"), "pg_desc": secret("pg"), "ranks": [0]}],
        "master": secret("master"), "nccl_version": secret("nccl"), "hostname": secret("hostname"),
    }
    before = {
        "trace_id": secret("trace id"), "host_name": secret("host name"), "username": secret("user name"),
        "metadata": {"env": {"HF_TOKEN": secret("token"), "PATH": secret("PATH")}, "argv": [secret("argv")]},
        "INFO": secret("INFO"), "command_line": secret("command line"), "cupti_version": secret("cupti"),
        "with_flops": secret("with_flops"), "unknown": {"deep": [{"er": secret("unknown")}]},
    }
    after = {"traceName": f"/home/{secret('traceName')}/run[1].json", "otherData": {"version": secret("other")},
             "last": secret("last"), "number": secret.number("number")}
    return before | doc | after


def outputs(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Iterator[tuple[str, str]]:
    """What every format prints, on both streams."""
    for form in FORMATS:
        code = main(["explain", str(path), "--format", form, *more])
        got = capsys.readouterr()
        assert code in (0, 2)
        assert (code == 0) == bool(got.out)
        yield form, got.out + got.err


def leaks(text: str, secret: Secrets) -> set[str]:
    """Where the markers come from that the text shows. Line breaks and spaces of a table do not hide one."""
    flat = re.sub(r"[\s\\,]", "", text)
    return {where for marker, where in secret.markers.items() if marker in flat}


@pytest.mark.parametrize("cpu_only", [False, True], ids=["gpu", "cpu"])
@pytest.mark.parametrize("window", ["all", "default"])
def test_no_secret_in_any_format(
    cpu_only: bool, window: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = Secrets()
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(full_of_secrets(secret, cpu_only=cpu_only), indent=1))
    assert len(secret.markers) > 50
    for form, text in outputs(path, capsys, "--window", window):
        assert "H100" in text or cpu_only, "the trace was not explained at all"
        assert not leaks(text, secret), form


def test_the_check_sees_a_leak() -> None:
    secret = Secrets()
    word = secret("a name")
    assert leaks(f"kernel  {word[:6]}\n  {word[6:]}", secret) == {"a name"}


def test_names_of_kernels_and_operators_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are the data: without them no report can be checked."""
    k = Kineto()
    k.kernel("my_own_kernel", 1_000, 9_000, launch=(100, 200))
    path = k.write(tmp_path / "trace.json")
    assert main(["explain", str(path), "--format", "json"]) == 0
    assert "my_own_kernel" in capsys.readouterr().out


def cut(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randrange(len(text))]


def flip(rng: random.Random, text: bytes) -> bytes:
    out = bytearray(text)
    for _ in range(rng.randint(1, 20)):
        out[rng.randrange(len(out))] = rng.choice(b'"{}[],:\\x ')
    return bytes(out)


def unquote(rng: random.Random, text: bytes) -> bytes:
    """A quote that opens or closes a text is gone."""
    at = rng.choice([m.start() for m in re.finditer(rb'"', text)])
    return text[:at] + text[at + 1 :]


def no_head(rng: random.Random, text: bytes) -> bytes:
    return text.replace(b'"traceEvents"', b'"traceEvent', 1)


def from_the_middle(rng: random.Random, text: bytes) -> bytes:
    return text[rng.randrange(len(text)) :]


def packed_and_cut(rng: random.Random, text: bytes) -> bytes:
    data = gzip.compress(text)
    return data[: rng.randrange(20, len(data))]


DAMAGE: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    cut, flip, unquote, no_head, from_the_middle, packed_and_cut,
)


@pytest.mark.heavy
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_no_secret_of_a_damaged_file(
    damage: Callable[[random.Random, bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(20_260)
    secret = Secrets()
    docs = [full_of_secrets(secret), full_of_secrets(secret, cpu_only=True)]
    path = tmp_path / "trace.json"
    for i in range(30):
        text = json.dumps(docs[i % 2], indent=(None, 1, 2)[i % 3]).encode()
        path.write_bytes(damage(rng, text))
        for form, shown in outputs(path, capsys):
            assert not leaks(shown, secret), f"{form}, {damage.__name__} {i}"


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["deviceProperties", "distributedInfo", "baseTimeNanoseconds", "displayTimeUnit",
                                 "schemaVersion", "record_shapes", "traceEvents"])
def test_no_secret_in_place_of_what_is_expected(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, lists and objects where numbers belong, and the other way round."""
    secret = Secrets()
    path = tmp_path / "trace.json"
    for value in (secret(key), [secret(key)], {"name": secret(key), "rank": secret(key), "id": secret(key)},
                  [{"id": 0, "name": 5, "numSms": secret(key), "computeMajor": secret(key)}],
                  *({"backend": secret(key).split("/")[0], "rank": 0} for _ in SHAPES),
                  *([{"id": 0, "name": secret(key)}] for _ in SHAPES)):
        path.write_text(json.dumps(full_of_secrets(secret) | {key: value}))
        for form, text in outputs(path, capsys):
            assert not leaks(text, secret), form


def test_no_secret_in_place_of_numbers_in_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = Secrets()
    doc = full_of_secrets(secret)
    for event in doc["traceEvents"]:
        for key in ("ts", "dur", "pid", "tid"):
            if random.Random(len(secret.markers)).random() < 0.2:
                event[key] = secret(key)
        for key in ("correlation", "External id", "stream", "device", "grid", "bytes"):
            if key in event.get("args", {}):
                event["args"][key] = secret(key)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(doc))
    for form, text in outputs(path, capsys):
        assert not leaks(text, secret), form


def test_no_secret_of_the_address_of_a_file(tmp_path: Path) -> None:
    """An unreadable trace in a folder with a telling name, and a URL with a password and a token."""
    folder = tmp_path / "zqsecretxv"
    folder.mkdir()
    (folder / "t.json").write_text("no trace")
    for argument in (str(folder / "t.json"), "http://zqsecretxv:zqsecretxv@127.0.0.1:9/zqsecretxv/t.json?zqsecretxv=1"):
        done = subprocess.run([sys.executable, "-m", "sublight", "explain", argument], capture_output=True, check=False)
        assert done.returncode == 2
        assert b"t.json" in done.stderr
        assert b"zqsecretxv" not in done.stderr + done.stdout
