"""`python -m tests.crash` (make crash): the whole matrix, its counts, and an exit code.

It brings its own Postgres, which it restarts, and leaves nothing behind.
"""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.crash import matrix
from tests.crash.case import Case
from tests.crash.points import points
from tests.crash.slots import make_template, open_nursery, open_zygote, server_of_ones_own

SHOWN = 20  # failures, in full
STEP = 100  # cases between two lines, where there is no terminal for a bar
console = Console(stderr=True)


def main(
    only: Annotated[str, typer.Option(help="Only cases whose name holds this.")] = "",
    everything: Annotated[bool, typer.Option("--everything", help="Leave nothing out (hours).")] = False,
    every: Annotated[int, typer.Option(min=1, help="Every n-th case only.")] = 1,
    slots: Annotated[int, typer.Option(min=1, help="Cases at the same time.")] = 6,
) -> None:
    """Play the matrix; exit code 1 when anything happened twice, was lost, or is not as it must be."""
    sys.exit(asyncio.run(_run(only, everything=everything, every=every, slots=slots)))


async def _run(only: str, *, everything: bool, every: int, slots: int) -> int:
    with server_of_ones_own() as server, open_zygote() as zygote:
        template = await make_template(server)
        async with open_nursery(zygote) as nursery:
            rehearsal = await matrix.rehearse(server, template, nursery)
            cases = matrix.main_cases(rehearsal.mains, everything=everything)
            cases += matrix.side_cases(rehearsal, everything=everything)
            chosen = [case for case in cases if only in str(case)][::every]
            with _progress() as progress:
                task = progress.add_task("", total=len(chosen))

                def show(report: matrix.Report) -> None:
                    said = f"twice {report.duplicates}, lost {report.lost}, wrong {len(report.failed)}"
                    progress.update(task, completed=report.played, description=said)
                    if not console.is_terminal and report.played % STEP == 0:
                        console.print(f"{report.played} of {len(chosen)} after {report.seconds:.0f} s: {said}")

                report = await matrix.play_all(server, template, nursery, chosen, slots=slots, progress=show)
    report.points |= rehearsal.report.points
    report.failed += rehearsal.report.failed
    _show(report, chosen)
    return 1 if report.failed else 0


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _show(report: matrix.Report, chosen: list[Case]) -> None:
    table = Table("fault", "cases", "points", "of them the n-th time", title="The kill matrix")
    for fault in matrix.FAULTS:
        of_it = [case for case in chosen if case.fault == fault]
        named = {case.point.partition("#")[0] for case in of_it if case.point}
        table.add_row(fault, str(len(of_it)), str(len(named)), str(len({case.point for case in of_it})))
    out = Console()
    out.print(table)
    known = points()
    elsewhere = sorted(point for point in known - report.points if point.partition(":")[0] in matrix.ELSEWHERE)
    out.print(
        f"{len(known)} points in the code, {len(known & report.points)} reached here, {len(elsewhere)} elsewhere:"
    )
    for name, why in matrix.ELSEWHERE.items():
        out.print(f"  {name}: {why}")
    out.print(
        f"{report.played} cases in {report.seconds:.0f} s; {report.effects} effects happened; "
        f"{report.unknown} left for people; {len(report.unstruck)} did not come to their point."
    )
    for played in report.failed[:SHOWN]:
        out.print(f"[red]{played.case}[/red]", *played.problems, sep="\n    ")
    if len(report.failed) > SHOWN:
        out.print(f"… and {len(report.failed) - SHOWN} more")
    out.print(f"duplicates {report.duplicates}, lost {report.lost}, otherwise wrong {_otherwise(report)}")


def _otherwise(report: matrix.Report) -> int:
    return len(report.failed) - report.duplicates - report.lost


if __name__ == "__main__":
    typer.run(main)
