"""How orders and payments become one: a function over the frames of all sources, by their names."""

from __future__ import annotations

from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - as everybody calls it
)


def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Each order with its payment, which comes within a day. The times bound what Spark has to
    remember of either side."""
    order, payment = orders.alias("o"), payments.alias("p")
    is_in_time = F.expr("p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL 1 DAY")
    joined = order.join(payment, (F.col("o.order_id") == F.col("p.order_id")) & is_in_time)
    return joined.select(
        F.col("o.order_id"),
        F.col("o.cents"),
        (F.col("o.cents") - F.col("p.cents")).alias("open_cents"),
        F.col("p.method"),
        F.col("p.paid_at"),
    )
