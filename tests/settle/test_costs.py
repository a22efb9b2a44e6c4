from local_bench.settle.costs import PhaseCost, generation_costs, phase_costs

HOUR = 3_600_000_000_000


def test_costs_of_phases_add_up_to_the_total_cost_and_unknown_energy_is_none():
    denoise = [PhaseCost("denoise", "a", HOUR // 7, 4), PhaseCost("denoise", "a", 1, 1)]
    held_times = [PhaseCost("load", None, HOUR // 3, 0), *denoise, PhaseCost("judge", None, 11, 9)]
    costs = phase_costs(held_times, 1_790_000)
    total = (HOUR // 3 + HOUR // 7 + 12) * 1_790_000 / HOUR
    assert abs(sum(c.cost_micro_usd for c in costs) - total) <= 0.5
    assert [(c.phase, c.n_items) for c in costs] == [("load", 0), ("denoise", 5), ("judge", 9)]
    assert set(generation_costs(costs)) == {"a"}
    (cost,) = phase_costs([PhaseCost("judge", None, 5, 1, 100), PhaseCost("judge", None, 5, 1, None)], 0)
    assert cost.energy_mj is None
