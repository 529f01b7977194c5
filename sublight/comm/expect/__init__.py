"""Expected times of collectives and of expert-parallel traffic, each with an interval.

    >>> from sublight.cluster import parse
    >>> from sublight.work import Message
    >>> time = expect(Message("all_to_all", 80, 1 << 30), parse("10x8xH100"))
    >>> time.limiter
    'rail'
    >>> even = Exchange("combine", tokens=4096, top_k=8, hidden=7168, experts=256, ranks=64, per_node=8, group_limit=4)
    >>> expected_exchange(even, parse("8x8xH800")).limiter
    'rail'
"""

from __future__ import annotations

from dataclasses import replace

from sublight.cluster import Cluster
from sublight.comm.expect.compose import KINDS, expect
from sublight.comm.expect.experts import EVEN, Exchange, Routing, Traffic, traffic
from sublight.comm.expected import Expected
from sublight.errors import InputError

__all__ = ["EVEN", "KINDS", "Exchange", "Expected", "Routing", "Traffic", "combine", "dispatch", "expect",
           "expected_exchange", "traffic"]


def expected_exchange(exchange: Exchange, cluster: Cluster) -> Expected:
    """What a dispatch or combine should take on a cluster: seconds with an 80 % interval.

    The exchange's ranks lie on the first of the cluster's nodes. Of normal kernels it is the transfer kernel, without
    the notify kernel before it. Raises InputError where exchange and cluster do not fit, or nothing was measured.
    """
    if exchange.ranks > cluster.ranks or exchange.per_node != min(cluster.domain, exchange.ranks):
        raise InputError(f"{exchange.phase} over {exchange.ranks} ranks, {exchange.per_node} a domain, does not fit a "
                         f"cluster of {cluster.ranks} ranks, {cluster.domain} a domain")
    if exchange.ranks < 2:
        raise InputError(f"{exchange.phase}: expected 2 or more ranks, got one, which has nobody to send to")
    if exchange.sms is not None and exchange.mode != "normal":
        raise InputError(f"{exchange.mode}: no rate by SMs was measured; expected none to be given, or mode normal")
    if exchange.mode == "nvl72-alltoall":
        from sublight.comm.expect import nvl72

        return nvl72.expected(exchange, cluster)
    from sublight.comm.expect import deepep

    return deepep.expected(exchange, cluster)


def dispatch(exchange: Exchange, cluster: Cluster) -> Expected:
    """What it should take to send tokens to their experts. Raises InputError as `expected_exchange` does."""
    return expected_exchange(replace(exchange, phase="dispatch"), cluster)


def combine(exchange: Exchange, cluster: Cluster) -> Expected:
    """What it should take to bring results back. The form of rows is that of a combine, bf16, unless it is bf16 or
    nvfp4 already. Raises InputError as `expected_exchange` does."""
    form = None if exchange.form == "fp8" else exchange.form
    return expected_exchange(replace(exchange, phase="combine", form=form), cluster)
