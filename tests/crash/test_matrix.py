"""A part of the kill matrix, and that it leaves no point out; `make crash` plays the whole."""

from collections import Counter

import pytest

from placet.record.embedded import Server
from tests.crash import matrix
from tests.crash.matrix import ELSEWHERE, Report
from tests.crash.points import places, points
from tests.crash.slots import Nursery, make_template, server_of_ones_own

PART = 36  # every so-manieth case


def told(report: Report) -> str:
    return "\n".join(f"{played.case}: {'; '.join(played.problems)}" for played in report.failed)


def test_e1_every_commit_on_the_way_of_a_call_has_a_name_of_its_own() -> None:
    """Each transaction and each call to the outside is a point that can be armed, and no two are the same."""
    assert [place.where for place in places() if place.name is None] == []
    names = Counter((place.verb, place.name) for place in places())
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.timeout(300)
async def test_e2_every_point_is_reached_by_a_story(server: Server, template: str, nursery: Nursery) -> None:
    """Played without a fault, each story ends as it should, and together they come to every point there is."""
    rehearsal = await matrix.rehearse(server, template, nursery)

    assert not rehearsal.report.failed, told(rehearsal.report)
    unreached = {point for point in points() - rehearsal.report.points if point.partition(":")[0] not in ELSEWHERE}
    assert unreached == set()
    assert set(ELSEWHERE) <= {point.partition(":")[0] for point in points()}
    assert {
        point for point in rehearsal.report.points if not point.startswith(":")
    } <= points()  # unnamed ones are tools'


@pytest.mark.timeout(300)
async def test_e2_nothing_twice_and_nothing_lost(server: Server, template: str, nursery: Nursery) -> None:
    """Workers killed, cut off and overtaken at points all over: each effect happened once, by the world's own count."""
    rehearsal = await matrix.rehearse(server, template, nursery, sides=())
    cases = [case for case in matrix.main_cases(rehearsal.mains) if case.fault != "restart"]

    report = await matrix.play_all(server, template, nursery, cases[::PART], slots=3)

    assert not report.failed, told(report)
    assert (report.duplicates, report.lost, report.unstruck) == (0, 0, [])
    assert report.effects == report.played > 30


@pytest.mark.timeout(300)
async def test_o3_a_restart_of_the_database_loses_nothing(nursery: Nursery) -> None:
    """Postgres falls over at points all over; everything goes on by itself when it is back."""
    with server_of_ones_own() as server:
        template = await make_template(server)
        rehearsal = await matrix.rehearse(server, template, nursery, sides=())
        cases = [case for case in matrix.main_cases(rehearsal.mains) if case.fault == "restart"]

        report = await matrix.play_all(server, template, nursery, cases[::PART], slots=6)

    assert not report.failed, told(report)
    assert report.effects == report.played > 8
