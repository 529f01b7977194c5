"""This file knows about what one operator of a model's run needs of a device and its network: seconds at stated rates,
and its bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.bound import Bound, bound
from sublight.comm.bus import bus_bytes
from sublight.comm.expected import Expected
from sublight.device import Device
from sublight.errors import InputError
from sublight.explain.fabric import Fabric, cluster_of, placed
from sublight.explain.model_ops import Item, communicates
from sublight.explain.model_setting import Setting
from sublight.explain.view import View
from sublight.ops import Communication
from sublight.ops.op import Op

ALIKE = 0.1                              # difference of bytes below which a collective of the trace is the model's


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operator needs of each resource, in seconds at stated rates. least: its bound; None: it has none."""

    compute: float
    memory: float
    network: float
    network_low: float
    network_high: float
    least: float | None
    limiter: str


def cost_of(item: Item, device: Device, network: Network, costs: dict[Op, Cost], refused: dict[str, None]) -> Cost:
    key = item.op
    if communicates(item):
        return network.cost(item, device)
    if key not in costs:
        work = item.op.work()
        seconds = []
        for (unit, form), flops in work.flops.items():
            rate = device.stated_flops_per_second(unit, form)
            if rate is None:
                refused[f"{item.label}: the catalog has no {unit} rate for {form} on {device.key}"] = None
            else:
                seconds.append(flops / rate)
        memory_rate = device.limits.memory_bytes_per_second
        least = bound(work, device.limits)
        costs[key] = Cost(max(seconds, default=0.0), work.bytes_total / memory_rate if memory_rate else 0.0, 0.0, 0.0,
                          0.0, least.seconds if least else None, _limiter(least))
    return costs[key]


def _limiter(least: Bound | None) -> str:
    return least.limiter if least else "unknown"


class Network:
    """Expected times of the run's collectives: of exchanges that the trace has, as the fabric says; else by comm."""

    def __init__(self, run: Setting, view: View, held: Fabric | None, refused: dict[str, None]) -> None:
        device = view.catalogued
        self.held, self.refused, self.notes = held, refused, dict[str, None]()     # notes: what expected times rest on
        ranks = max(run.split.ranks * run.split.pp, view.trace.world_size or 1)
        self.cluster = held.cluster if held else (cluster_of(device, ranks) if device else None)
        self.told_by = held.told_by if held else ("assumed: the usual nodes of the device, ranks packed"
                                                  if self.cluster else "no cluster is known for the device")
        self.known: dict[tuple[str, Op], Cost] = {}

    def cost(self, item: Item, device: Device) -> Cost:
        if (item.label, item.op) not in self.known:
            self.known[item.label, item.op] = self._new(item, device)
        return self.known[item.label, item.op]

    def _new(self, item: Item, device: Device) -> Cost:
        assert isinstance(item.op, Communication)
        least = bound(item.op.work(), device.limits)
        exchange = self._exchange(item.label)
        expected = exchange or self._seen(item.op) or self._expected(item.label, item.op)
        self.notes.update(dict.fromkeys(expected.notes if expected else ()))
        if exchange and self.held:
            words = ((note.replace("as given", "as the model or the user says") if note.endswith("as given") else note)
                     for note in self.held.assumptions)
            self.notes.update(dict.fromkeys(words))
        if expected is None:
            return Cost(0.0, 0.0, least.seconds if least else 0.0, least.seconds if least else 0.0,
                        least.seconds if least else 0.0, least.seconds if least else None, _limiter(least))
        # copies of a token that share a rank or a node travel once in these kernels: no bound from all copies
        known = None if exchange or least is None else least.seconds
        return Cost(0.0, 0.0, expected.seconds, expected.low, expected.high, known, expected.limiter)

    def _exchange(self, label: str) -> Expected | None:
        """Of the trace's dispatches and combines; a gradient's dispatch is a combine, and back."""
        wanted = {"moe.dispatch": "dispatch", "moe.combine": "combine", "moe.dispatch.grad": "combine",
                  "moe.combine.grad": "dispatch (cached)"}.get(label)
        rows = {row.what: row.expected for row in self.held.rows} if self.held else {}
        return rows.get(wanted or "") or (rows.get("dispatch") if wanted == "dispatch (cached)" else None)

    def _seen(self, op: Communication) -> Expected | None:
        """Of a collective of the trace with as many ranks and about as many bytes: its kernels say which kind it is."""
        wanted = bus_bytes(op.work().messages[0])
        alike = [row for row in self.held.rows if row.what == op.collective and row.ranks == op.group
                 and wanted and abs(row.bus_bytes / wanted - 1) <= ALIKE] if self.held else []
        return min(alike, key=lambda row: abs(row.bus_bytes / (wanted or 1.0) - 1)).expected if alike else None

    def _expected(self, label: str, op: Communication) -> Expected | None:
        from sublight.comm.expect import expect

        if self.cluster is None:
            self.refused[f"{label}: no cluster is known for the device; say --on"] = None
            return None
        try:
            return expect(op.work().messages[0], placed(self.cluster, op.group, ()), dtype=op.form)
        except InputError as error:
            self.refused[f"{label}: {error}; its bound is taken"] = None
            return None
