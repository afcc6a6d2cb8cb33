"""What a model may say to refund_payments, and how amounts are added and told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tools.shop import Shop
from tools.shop.amounts import in_words, sums
from tools.shop.refund_payments import RefundArguments, RefundPayments


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"refund_due_ids": []}, "at least 1"),
        ({"refund_due_ids": [f"R-{n}" for n in range(501)]}, "at most 500"),
        ({"refund_due_ids": ["R-1", "R-2", "R-1"]}, "got some twice: R-1"),
        ({"refund_due_ids": ["R-1\0"]}, "U\\+0000"),
        ({"refund_due_ids": ["R-\ud800"]}, "unicode"),
        ({"refund_due_ids": [17]}, "valid string"),
        ({"refund_due_ids": "R-1"}, "valid list"),
        ({"refund_due_ids": ["R-1"], "stated_total": {"minor": 41.2, "currency": "EUR"}}, "valid integer"),
        ({"refund_due_ids": ["R-1"], "stated_total": {"minor": 2**53, "currency": "EUR"}}, "less than or equal"),
        ({"refund_due_ids": ["R-1"], "stated_total": {"minor": 1, "currency": "euro"}}, "pattern"),
        ({"refund_due_ids": ["R-1"], "all": True}, "Extra inputs"),
    ],
)
def test_p6_what_does_not_validate_names_the_fault(arguments: dict[str, object], says: str) -> None:
    """Arguments outside the schema never reach the shop."""
    with pytest.raises(ValidationError, match=says):
        RefundArguments.model_validate(arguments)


def test_resources_name_each_refund(shop: Shop) -> None:
    """A veto on some refunds covers any other batch with one of them."""
    assert RefundPayments(shop).resources(RefundArguments(refund_due_ids=["R-1", "R-2"])) == [
        "refund:R-1",
        "refund:R-2",
    ]


amounts = st.lists(
    st.tuples(st.integers(-(10**13), 10**13), st.sampled_from(["EUR", "GBP", "JPY", "KWD"])), max_size=50
)


@given(amounts)
def test_money_is_summed_per_currency_and_nothing_is_lost(of_amounts: list[tuple[int, str]]) -> None:
    """Totals per currency add up to the minor unit, in any order of the amounts."""
    totals = sums(of_amounts)

    assert totals == sums(reversed(of_amounts))
    assert set(totals) == {currency for _, currency in of_amounts}
    for currency, total in totals.items():
        assert total == sum(minor for minor, its in of_amounts if its == currency)


@given(amounts)
def test_money_in_words_can_be_read_back(of_amounts: list[tuple[int, str]]) -> None:
    """What people read is the amount, to the last minor unit."""
    totals = sums(of_amounts)
    digits = {"EUR": 2, "GBP": 2, "JPY": 0, "KWD": 3}

    read = {
        currency: int(number.replace(",", "").replace(".", ""))
        for number, currency in (words.split(" ") for words in in_words(totals).split(" and ") if words)
    }

    assert read == totals
    assert all(
        len(words.split(" ")[0].partition(".")[2]) == digits[words[-3:]]
        for words in in_words(totals).split(" and ")
        if words
    )
