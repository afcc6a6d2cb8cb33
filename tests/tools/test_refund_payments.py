"""Refunding: the numbers come from the books, the batch leaves once, and the books follow the gateway."""

import asyncio
import json
import sys

import pytest
from psycopg import OperationalError, errors

from placet.record import crashpoints
from placet.record.database import Database
from tests.tools.conftest import CountingDatabase, MakeDue
from tools.contract import NothingSent, Refused
from tools.money import Money
from tools.shop import Shop, tools
from tools.shop.gateway import Captured, ConnectionLost, Faults
from tools.shop.refund_payments import RefundArguments, RefundFacts, RefundPayments

# A worker that pays and then waits for the gateway's answer.
EXECUTE = """
import asyncio, json, sys
from placet.record.database import Database
from tools.shop import Shop
from tools.shop.refund_payments import RefundArguments, RefundPayments

async def main():
    async with Database(sys.argv[1]) as database:
        args = RefundArguments(refund_due_ids=json.loads(sys.argv[2]))
        await RefundPayments(Shop(database, "acme")).execute(args, "op")

asyncio.run(main())
"""


@pytest.fixture
def tool(shop: Shop) -> RefundPayments:
    return RefundPayments(shop)


def of(ids: list[str], stated: Money | None = None) -> RefundArguments:
    return RefundArguments(refund_due_ids=ids, stated_total=stated)


async def books(shop: Shop, ids: list[str]) -> dict[str, tuple[str, str | None]]:
    """Status and operation of each refund, by our own books."""
    async with shop.database.read() as tx:
        rows = await tx.fetch_dicts(
            """
            select refund_due_id, status, operation_id
              from shop.refunds_due
             where tenant_id = %(tenant)s and refund_due_id = any(%(ids)s)
             order by refund_due_id
            """,
            {"tenant": shop.tenant, "ids": ids},
        )
    return {row["refund_due_id"]: (row["status"], row["operation_id"]) for row in rows}


class TestFacts:
    async def test_p3_count_and_total_come_from_the_orders(self, tool: RefundPayments, make_due: MakeDue) -> None:
        """What the model states changes no number; it is only said that it differs."""
        ids = await make_due(1000, 2500, 700)

        right = await tool.facts(of(ids, Money(minor=4200, currency="EUR")))
        wrong = await tool.facts(of(ids, Money(minor=42, currency="EUR")))
        other = await tool.facts(of(ids, Money(minor=4200, currency="USD")))

        assert right == RefundFacts(
            count=3,
            total=4200,
            largest=2500,
            currency="EUR",
            due_in_batches=3,
            not_due=0,
            stated_total_differs=False,
        )
        assert wrong == other == right.model_copy(update={"stated_total_differs": True})

    async def test_a7_the_precondition_counts_the_whole_batch(self, tool: RefundPayments, make_due: MakeDue) -> None:
        """One refund of a batch is asked for: the precondition knows the others, of its batches and no others."""
        ids = await make_due(1000, 2500, batch="A")
        await make_due(100, batch="B")
        before = await tool.facts(of(ids[:1]))
        await make_due(300, batch="A")

        assert before.due_in_batches == 2
        assert (await tool.facts(of(ids[:1]))).due_in_batches == 3
        assert tool.preconditions == ("due_in_batches",)

    async def test_p6_unknown_ids_are_counted_and_nothing_breaks(self, tool: RefundPayments, make_due: MakeDue) -> None:
        """Ids that nobody knows are not due; alone they come to nothing."""
        ids = await make_due(1000)

        some = await tool.facts(of([*ids, "R-nobody"]))
        none = await tool.facts(of(["R-nobody", "\u202e"]))

        assert (some.count, some.total, some.not_due) == (1, 1000, 1)
        assert none == RefundFacts(
            count=0, total=0, largest=0, currency="NONE", due_in_batches=0, not_due=2, stated_total_differs=False
        )

    async def test_p3_several_currencies_are_said(self, tool: RefundPayments, make_due: MakeDue) -> None:
        """Two currencies have no total: the currency is MIXED, and any stated total differs."""
        ids = await make_due(1000, currency="EUR") + await make_due(1000, currency="GBP")

        facts = await tool.facts(of(ids, Money(minor=2000, currency="EUR")))

        assert facts.currency == "MIXED"
        assert facts.stated_total_differs

    async def test_another_tenants_refund_is_unknown(self, tool: RefundPayments, shop: Shop, make_due: MakeDue) -> None:
        """An id of another shop is an id that nobody knows; a batch of the same name is another batch."""
        theirs = await make_due(1000, batch="A", of=Shop(shop.database, "other"))
        ours = await make_due(1000, batch="A")

        facts = await tool.facts(of(theirs + ours))

        assert (facts.count, facts.not_due, facts.due_in_batches) == (1, 1, 1)


class TestPreview:
    async def test_a1_the_title_counts_and_the_sample_shows_the_largest(
        self, tool: RefundPayments, make_due: MakeDue
    ) -> None:
        """A person reads verb, count and amount, and sees five real rows."""
        ids = await make_due(*range(1000, 1700, 100), batch="NOV-17")
        args = of(ids)

        preview = await tool.preview(args, await tool.facts(args))

        assert preview.title == "Refund 7 payments: 91.00 EUR"
        assert preview.impact == [
            "1 customer receives money; it does not come back",
            "7 of the 7 refunds that are due in batch NOV-17",
            "The largest is 16.00 EUR",
        ]
        assert [row["amount"] for row in preview.sample] == [
            "16.00 EUR",
            "15.00 EUR",
            "14.00 EUR",
            "13.00 EUR",
            "12.00 EUR",
        ]
        assert preview.sample[0]["customer"] == "Ada"
        assert preview.warnings == []
        assert not preview.reversible

    async def test_p3_what_disagrees_is_a_warning(self, tool: RefundPayments, make_due: MakeDue) -> None:
        """Another stated total, unknown ids and refunded ones stand in the warnings, not in the amount."""
        ids = await make_due(1000, 2500)
        await tool.execute(of(ids[1:]), "earlier")
        args = of([*ids, "R-nobody"], Money(minor=100, currency="EUR"))

        preview = await tool.preview(args, await tool.facts(args))

        assert preview.title == "Refund 1 payment: 10.00 EUR"
        assert preview.warnings == [
            "The agent stated a total of 1.00 EUR; the refunds come to 10.00 EUR.",
            f"Not due, so not paid, 2 of 3 ids: {ids[1]} (already refunded under operation earlier), "
            "R-nobody (unknown).",
        ]

    async def test_p6_a_preview_of_nothing_says_so(self, tool: RefundPayments) -> None:
        """Unknown ids alone: nobody receives money."""
        args = of(["R-nobody"])

        preview = await tool.preview(args, await tool.facts(args))

        assert preview.title == "Refund 0 payments"
        assert preview.impact == ["Nobody receives money: none of these refunds is due"]
        assert preview.sample == []

    async def test_a1_each_currency_has_its_own_total(self, tool: RefundPayments, make_due: MakeDue) -> None:
        """Two currencies are told apart in the title, never added."""
        args = of(await make_due(1000, currency="EUR") + await make_due(900, currency="GBP"))

        preview = await tool.preview(args, await tool.facts(args))

        assert preview.title == "Refund 2 payments: 10.00 EUR and 9.00 GBP"
        assert preview.warnings == ["More than one currency: each total stands for itself."]

    async def test_a1_a_refund_that_is_on_its_way_is_pointed_out(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """While another call is sending a refund, the person sees it before they decide."""
        ids = await make_due(1000)
        await shop.gateway.misbehave(Faults(drops_the_answer=True))
        with pytest.raises(ConnectionLost):
            await tool.execute(of(ids), "one")

        preview = await tool.preview(of(ids), await tool.facts(of(ids)))

        assert preview.warnings == [f"On the way already by another call, 1 of 1 ids: {ids[0]}."]


class TestExecute:
    async def test_a7_exactly_the_ids_of_the_call_are_paid(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """More are due in the batch; the call pays those it names, each with the amount of our books."""
        ids = await make_due(1000, 2500, 700)

        receipt = await tool.execute(of(ids[:2], Money(minor=1, currency="EUR")), "op")

        assert receipt.summary == "Refunded 2 of 2 payments: 35.00 EUR."
        assert receipt.data == {"totals": [{"minor": 3500, "currency": "EUR", "text": "35.00 EUR"}]}
        assert await shop.gateway.sent(ids) == {ids[0]: 1, ids[1]: 1, ids[2]: 0}
        assert [(line.times, line.minor) for line in await shop.gateway.ledger()] == [(1, 1000), (1, 2500)]
        assert await books(shop, ids) == {ids[0]: ("refunded", "op"), ids[1]: ("refunded", "op"), ids[2]: ("due", None)}

    async def test_e2_the_same_operation_again_pays_nothing(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """Sent again under the same operation id, before or after the books were written: the same receipt."""
        ids = await make_due(1000, 2500)

        first = await tool.execute(of(ids), "op")

        assert await tool.execute(of(ids), "op") == first
        assert (await tool.observe(of(ids), "op")).receipt == first
        assert await shop.gateway.sent(ids) == dict.fromkeys(ids, 1)

    async def test_e2_an_operation_never_grows(self, tool: RefundPayments, shop: Shop, make_due: MakeDue) -> None:
        """An id that becomes due after the batch was sent is not sent by the same operation later."""
        ids = await make_due(1000)
        first = await tool.execute(of([*ids, "R-2"]), "op")
        assert await make_due(2500) == ["R-2"]

        second = await tool.execute(of([*ids, "R-2"]), "op")

        assert [(line.status, line.reason) for line in first.lines[1:]] == [
            ("refused", "no refund of this id is known")
        ]
        assert [(line.status, line.reason) for line in second.lines[1:]] == [
            ("refused", "became due after the batch had been sent")
        ]
        assert await shop.gateway.sent([*ids, "R-2"]) == {ids[0]: 1, "R-2": 0}

    async def test_e5_a_lost_answer_is_settled_by_looking(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """The gateway pays, the answer is lost: nothing is known until it is observed; then the books are repaired."""
        ids = await make_due(1000, 2500)
        await shop.gateway.misbehave(Faults(drops_the_answer=True))
        with pytest.raises(ConnectionLost):
            await tool.execute(of(ids), "op")
        lost = await books(shop, ids)

        seen = await tool.observe(of(ids), "op")

        assert lost == dict.fromkeys(ids, ("due", "op"))
        assert seen.status == "committed"
        assert seen.receipt is not None
        assert [line.status for line in seen.receipt.lines] == ["done", "done"]
        assert await books(shop, ids) == dict.fromkeys(ids, ("refunded", "op"))
        assert await shop.gateway.sent(ids) == dict.fromkeys(ids, 1)

    async def test_e5_a_process_that_is_killed_after_paying_has_paid_once(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue, database_url: str
    ) -> None:
        """kill -9 between payment and receipt: another process observes, finds the receipt and repairs the books."""
        ids = await make_due(1000, 2500)
        await shop.gateway.misbehave(Faults(answers_after=600))
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", EXECUTE, database_url, json.dumps(ids), stderr=asyncio.subprocess.PIPE
        )
        assert worker.stderr is not None
        dead = asyncio.ensure_future(worker.stderr.read())
        while not any((await shop.gateway.sent(ids)).values()):
            assert not dead.done(), dead.result().decode()
        worker.kill()
        await worker.wait()
        await dead

        seen = await tool.observe(of(ids), "op")

        assert seen.status == "committed"
        assert await books(shop, ids) == dict.fromkeys(ids, ("refunded", "op"))
        await shop.gateway.misbehave(Faults())
        assert await tool.execute(of(ids), "op") == seen.receipt
        assert await shop.gateway.sent(ids) == dict.fromkeys(ids, 1)

    async def test_e5_what_never_left_is_absent_and_can_be_sent(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """The process dies between claiming and sending: observed as absent, the refunds are free again, one payout."""
        ids = await make_due(1000)
        async with shop.database.transaction() as tx:
            await tx.execute("update shop.refunds_due set operation_id = 'op'")

        seen = await tool.observe(of(ids), "op")

        assert seen.status == "absent"
        assert await books(shop, ids) == {ids[0]: ("due", None)}
        await tool.execute(of(ids), "op")
        assert await shop.gateway.sent(ids) == {ids[0]: 1}

    async def test_e6_a_silent_gateway_keeps_the_claim(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """Unknown is not absent: nobody else may send what may have been sent."""
        ids = await make_due(1000)
        await shop.gateway.misbehave(Faults(drops_the_answer=True, silent=True))
        with pytest.raises(ConnectionLost):
            await tool.execute(of(ids), "op")

        seen = await tool.observe(of(ids), "op")
        with pytest.raises(Refused, match="on its way under operation op"):
            await tool.execute(of(ids), "another")

        assert seen.status == "unknown"
        assert await shop.gateway.sent(ids) == {ids[0]: 1}

    async def test_e2_two_calls_that_overlap_pay_each_refund_once(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """Two operations name the same refunds in other orders at the same instant: each refund goes out once, and the
        receipts say which call paid it."""
        ids = await make_due(*[1000] * 20)

        one, two = await asyncio.gather(
            tool.execute(of(ids[:15]), "one"), tool.execute(of(list(reversed(ids[5:]))), "two"), return_exceptions=True
        )

        assert await shop.gateway.sent(ids) == dict.fromkeys(ids, 1)
        assert not isinstance(one, BaseException)
        assert not isinstance(two, BaseException)
        paid = [line.ref for receipt in (one, two) for line in receipt.lines if line.status == "done"]
        assert sorted(paid) == sorted(ids)

    async def test_e3_lines_that_are_not_due_are_refused_with_the_reason(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """Unknown, refunded and not refundable ids are lines of the receipt; nothing is sent for them."""
        ids = await make_due(1000, 2500, 700)
        await tool.execute(of(ids[1:2]), "earlier")
        async with shop.database.transaction() as tx:
            await tx.execute(
                "update shop.refunds_due set status = 'not_refundable', why_not = 'disputed' where refund_due_id = %(id)s",
                {"id": ids[2]},
            )

        receipt = await tool.execute(of(["R-nobody", *ids]), "op")

        assert [(line.ref, line.status, line.reason) for line in receipt.lines] == [
            ("R-nobody", "refused", "no refund of this id is known"),
            (ids[0], "done", None),
            (ids[1], "refused", "already refunded under operation earlier"),
            (ids[2], "refused", "not refundable: disputed"),
        ]
        assert receipt.summary == "Refunded 1 of 4 payments: 10.00 EUR; 3 refused."
        assert await shop.gateway.sent(ids) == {ids[0]: 1, ids[1]: 1, ids[2]: 0}
        assert (await tool.observe(of(["R-nobody", *ids]), "op")).receipt == receipt

    async def test_e4_nothing_to_send_is_a_definite_no(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """None of the ids is due: refused, with the reasons, and the gateway has not been asked."""
        ids = await make_due(1000)
        await tool.execute(of(ids), "earlier")

        with pytest.raises(Refused, match="already refunded under operation earlier") as refused:
            await tool.execute(of(ids), "op")

        assert refused.value.code == "nothing_due"
        assert (await shop.gateway.look_up("op")).status == "absent"

    async def test_e4_a_refusal_of_the_gateway_frees_the_refunds(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """The gateway says no to the batch: refused, and another call may try."""
        ids = await make_due(1000)
        await shop.gateway.misbehave(Faults(refuses="payouts are suspended"))
        with pytest.raises(Refused, match="payouts are suspended"):
            await tool.execute(of(ids), "op")

        assert await books(shop, ids) == {ids[0]: ("due", None)}
        assert await shop.gateway.sent(ids) == {ids[0]: 0}

    async def test_e3_a_line_that_the_gateway_refuses_is_not_refundable(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """The gateway does not know one payment: the other is paid, our books say why this one is not."""
        known, unknown = await make_due(1000), await make_due(2500, at_gateway=False)
        await shop.gateway.register([Captured("P-2", 2500, "EUR", status="authorised")])

        receipt = await tool.execute(of(known + unknown), "op")

        assert [line.status for line in receipt.lines] == ["done", "refused"]
        assert await books(shop, known + unknown) == {
            known[0]: ("refunded", "op"),
            unknown[0]: ("not_refundable", "op"),
        }
        assert await tool.execute(of(known + unknown), "op") == receipt

    async def test_e8_without_our_database_nothing_has_been_sent(self, database_url: str) -> None:
        """The books cannot be reached: the call says that nothing left, so it may be sent again."""
        closed = Database(database_url)

        with pytest.raises(NothingSent):
            await RefundPayments(Shop(closed, "acme")).execute(of(["R-1"]), "op")

    async def test_e4_a_claim_without_an_answer_is_not_called_unsent(
        self, tool: RefundPayments, shop: Shop, make_due: MakeDue
    ) -> None:
        """The connection dies as the claim is committed: observing finds nothing at the gateway, and releases it."""
        due = await make_due(900)

        async def lost() -> None:
            raise OperationalError("server closed the connection unexpectedly")

        crashpoints.arm(":committed", lost)
        with pytest.raises(OperationalError):
            await tool.execute(of(due), "op")
        assert await books(shop, due) == {due[0]: ("due", "op")}

        assert (await tool.observe(of(due), "op")).status == "absent"
        assert await books(shop, due) == {due[0]: ("due", None)}


async def test_five_hundred_ids_take_as_many_queries_as_one(counting: CountingDatabase, make_due: MakeDue) -> None:
    """No query per row: facts and preview take one each, execution and observation the same for 1 and for 500."""
    tool = RefundPayments(Shop(counting, "acme"))
    few, many = await make_due(100), await make_due(*[100] * 500)
    counted: list[list[int]] = []
    for ids, operation in ((few, "one"), (many, "two")):
        args, counts = of(ids), list[int]()
        facts = await tool.facts(args)
        counts.append(len(counting.statements))
        await tool.preview(args, facts)
        counts.append(len(counting.statements))
        await tool.execute(args, operation)
        counts.append(len(counting.statements))
        await tool.observe(args, operation)
        counts.append(len(counting.statements))
        counting.statements.clear()
        counted.append(counts)

    assert counted[0] == counted[1]
    assert counted[0][:2] == [1, 2]


async def test_one_refund_per_order_is_a_constraint(shop: Shop, make_due: MakeDue) -> None:
    """The database itself refuses a second refund of an order, and one of another order's payment."""
    await make_due(1000, 2000)

    async def add(order: str, payment: str) -> None:
        async with shop.database.transaction() as tx:
            await tx.execute("delete from shop.refunds_due where order_id = 'O-2'")
            await tx.execute(
                """
                insert into shop.refunds_due
                       (tenant_id, refund_due_id, order_id, payment_id, batch, minor, currency, reason, due_at)
                values ('acme', 'R-x', %(order)s, %(payment)s, 'B-1', 1000, 'EUR', 'again', now())
                """,
                {"order": order, "payment": payment},
            )

    with pytest.raises(errors.UniqueViolation, match="one_refund_per_order"):
        await add("O-1", "P-1")
    with pytest.raises(errors.ForeignKeyViolation, match="a_refund_is_of_the_orders_own_payment"):
        await add("O-2", "P-1")
    await add("O-2", "P-2")


def test_the_shop_has_its_six_tools(shop: Shop) -> None:
    """The names that rules and rehearsal go by."""
    assert [(tool.name, tool.tier.value) for tool in tools(shop)] == [
        ("search_orders", "read_only"),
        ("get_balance", "read_only"),
        ("draft_refund_report", "reversible"),
        ("tag_orders", "reversible"),
        ("refund_payments", "irreversible"),
        ("delete_customers", "irreversible"),
    ]
