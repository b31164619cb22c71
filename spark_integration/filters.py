"""Turns Spark's filters into conditions that a plan can use (pyspark.sql.datasource: Filter)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import datasource as spark

from mpbroker.reading.conditions import Condition, Operator

_WITH_A_VALUE: Final[dict[type[spark.Filter], Operator]] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "<=>",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.In: "in",
    spark.StringStartsWith: "starts",
    spark.StringEndsWith: "ends",
    spark.StringContains: "contains",
}


def condition_of(found: spark.Filter) -> Condition | None:
    """Return the filter as a condition on one column; None if it is none."""
    if isinstance(found, spark.Not):
        inner = condition_of(found.child)
        return None if inner is None else inner._replace(negated=not inner.negated)
    attribute: tuple[str, ...] = getattr(found, "attribute", ())
    if len(attribute) != 1:
        return None
    if isinstance(found, spark.IsNull | spark.IsNotNull):
        return Condition(attribute[0], "null", negated=isinstance(found, spark.IsNotNull))
    operator = _WITH_A_VALUE.get(type(found))
    if operator is None:
        return None
    value = getattr(found, "value")  # noqa: B009 - each of these classes has one, their base has none
    return Condition(attribute[0], operator, tuple(value) if operator == "in" else value)
