"""Waves: rounds of a grid, what the last one wastes, which sizes fill."""

from __future__ import annotations

import pytest

from sublight.errors import InputError
from sublight.kernels.inspect.waves import waves


def test_a_tile_too_many_costs_a_round() -> None:
    # 4096 x 4096 in 128 x 256: 32 x 16 = 512 tiles on 132 SMs: three full rounds (396), then 116 of 132
    found = waves(4096, 4096, tile_m=128, tile_n=256, sms=132, blocks_per_sm=1)
    assert (found.tiles, found.slots, found.rounds, found.last) == (512, 132, 4, 116)
    assert found.lost == pytest.approx(16 / 528)
    assert (found.padded, found.fills) == (0.0, (396, 528))


def test_a_grid_that_fills_loses_nothing() -> None:
    found = waves(132 * 128, 256, tile_m=128, tile_n=256, sms=132, blocks_per_sm=1)
    assert (found.rounds, found.last, found.lost, found.fills) == (1, 132, 0.0, (132, 132))
    assert waves(133 * 128, 256, tile_m=128, tile_n=256, sms=132, blocks_per_sm=1).lost == pytest.approx(131 / 264)


def test_edges_parts_along_k_and_clusters() -> None:
    # 65 rows in tiles of 64: two rows of tiles, 63 of 128 rows are outside; three parts along K; clusters of two
    found = waves(65, 64, tile_m=64, tile_n=64, sms=5, blocks_per_sm=1, split=3, cluster=2)
    assert (found.tiles, found.slots, found.rounds) == (6, 4, 2)
    assert found.padded == pytest.approx(63 / 128)


@pytest.mark.parametrize("sizes", [{"m": 0}, {"tile_n": 0}, {"split": 0}, {"cluster": 999}])
def test_sizes_below_one_and_clusters_that_do_not_fit_are_refused(sizes: dict[str, int]) -> None:
    whole = {"m": 64, "n": 64, "tile_m": 64, "tile_n": 64, "sms": 132, "blocks_per_sm": 1} | sizes
    with pytest.raises(InputError):
        waves(whole.pop("m"), whole.pop("n"), **whole)
