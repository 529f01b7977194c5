"""This file knows about the network between the nodes of a cluster: its leaves, rails and spine, what they carry."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Fabric:
    """Rates are bytes per second and direction."""

    kind: str                            # "infiniband", "roce"
    layout: str                          # "rail", "fat-tree"
    ranks: int
    domains: int                         # NVLink domains
    ranks_per_domain: int                # of the fullest
    rails: int                           # 1 in a fat-tree
    leaves: int
    nodes_under_leaf: int                # of the fullest
    leaf_down: float                     # of the fullest leaf, to its nodes
    leaf_up: float                       # of the same, to the spine; 0 where one leaf joins all
    spine: str                           # what passes it, in words
    oversubscription: float
    node: float                          # out of one node
    bisection: float                     # between two halves of the nodes that sit on different leaves, at least


def fabric_of(cluster: Cluster) -> Fabric | None:
    """The fabric of a cluster of several nodes; None for one node, or nodes without ports.

    Leaves are taken to be non-blocking, each with the same number of nodes. In a rail layout, port i of every node ends
    in a leaf of rail i, so that several nodes under one leaf meet without the spine only on the same rail.

        >>> from sublight.cluster import parse
        >>> found = fabric_of(parse("64x8xH100:oversubscription=2"))
        >>> found.rails, found.leaves, found.node / 1e9, found.bisection / 1e9
        (8, 16, 400.0, 6400.0)
    """
    node = cluster.node
    if cluster.nodes < 2 or not node.nics or not node.nic_bytes_per_second:
        return None
    out = node.nics * node.nic_bytes_per_second
    rail = cluster.layout == "rail"
    rails = node.nics if rail else 1
    groups = -(-cluster.nodes // cluster.nodes_per_leaf)
    under = min(cluster.nodes, cluster.nodes_per_leaf)
    down = under * out / rails
    one_leaf = groups == 1 and rails == 1
    spine = ("none: one leaf joins all nodes" if one_leaf else "only traffic between rails" if groups == 1 else
             "all traffic between leaves")
    ratio = 1.0 if groups == 1 else cluster.oversubscription
    return Fabric(
        kind=cluster.fabric, layout=cluster.layout, ranks=cluster.ranks,
        domains=-(-cluster.ranks // cluster.domain), ranks_per_domain=cluster.domain, rails=rails,
        leaves=groups * rails, nodes_under_leaf=under, leaf_down=down,
        leaf_up=0.0 if one_leaf else down / cluster.oversubscription, spine=spine,
        oversubscription=cluster.oversubscription, node=out, bisection=cluster.nodes // 2 * out / ratio,
    )
