"""The demo's shop: orders, payments, and refunds that are due, as real rows; and the tools that an agent has there.

`MIGRATIONS` is the folder of SQL files that make its two schemas, `shop` and `gateway`.
"""

from pathlib import Path

from tools.registry import AnyTool
from tools.shop.delete_customers import DeleteCustomers
from tools.shop.draft_refund_report import DraftRefundReport
from tools.shop.get_balance import GetBalance
from tools.shop.refund_payments import RefundPayments
from tools.shop.search_orders import SearchOrders
from tools.shop.shop import Shop
from tools.shop.tag_orders import TagOrders

MIGRATIONS = Path(__file__).parent / "migrations"

__all__ = ["MIGRATIONS", "Shop", "tools"]


def tools(shop: Shop) -> list[AnyTool]:
    """The tools of one tenant's shop."""
    return [
        SearchOrders(shop),
        GetBalance(shop),
        DraftRefundReport(shop),
        TagOrders(shop),
        RefundPayments(shop),
        DeleteCustomers(shop),
    ]
