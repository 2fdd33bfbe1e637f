"""A unit is told once, when all of it and of the units before it is settled."""

from tasks.open_units import OpenUnit, OpenUnits


def test_units_are_told_in_order_and_only_when_computed_and_settled() -> None:
    told: list[OpenUnit] = []
    units = OpenUnits(told.append)
    units.begin(1, 2)
    units.add_times(1, 1.0, 0.25)
    units.settle(1)
    units.end_forward(1)
    units.begin(2, 1)
    units.settle(2)
    units.end_forward(2)
    assert told == []
    units.add_times(1, 2.0, 0.5)
    units.settle(1)
    assert [(unit.number, unit.forward_seconds, unit.wait_seconds) for unit in told] == [(1, 3.0, 0.75), (2, 0.0, 0.0)]
    units.begin(3, 0)
    assert len(told) == 2
    units.end_forward(3)
    assert told[-1].number == 3
    units.wait(lambda: False)
