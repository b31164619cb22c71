package io.mpbroker.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.StringContains;
import org.apache.spark.sql.sources.StringEndsWith;
import org.apache.spark.sql.sources.StringStartsWith;
import scala.Product;

/** Writes Spark's filters as conditions, with which Python plans. (Python: mpbroker.reading.conditions.) */
final class Conditions {
  private static final Set<String> COLUMNS = Set.of("topic", "partition", "offset", "timestamp");
  private static final Map<Class<?>, String> OPERATORS =
      Map.ofEntries(
          Map.entry(EqualTo.class, "="),
          Map.entry(EqualNullSafe.class, "<=>"),
          Map.entry(LessThan.class, "<"),
          Map.entry(LessThanOrEqual.class, "<="),
          Map.entry(GreaterThan.class, ">"),
          Map.entry(GreaterThanOrEqual.class, ">="),
          Map.entry(In.class, "in"),
          Map.entry(StringStartsWith.class, "starts"),
          Map.entry(StringEndsWith.class, "ends"),
          Map.entry(StringContains.class, "contains"),
          Map.entry(IsNull.class, "null"));
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private Conditions() {}

  /** Returns those filters that compare one of four columns with constants. */
  static Filter[] known(Filter[] filters) {
    return Arrays.stream(filters).filter(one -> condition(one) != null).toArray(Filter[]::new);
  }

  /** Returns known filters as JSON. Timestamps are numbers of microseconds since 1970. */
  static ArrayNode json(Filter[] known) {
    ArrayNode found = MAPPER.createArrayNode();
    Arrays.stream(known).map(Conditions::condition).forEach(found::add);
    return found;
  }

  /** Returns the condition {column, operator, value, negated}; null for any other filter. */
  private static ObjectNode condition(Filter filter) {
    if (filter instanceof Not not) {
      ObjectNode inner = condition(not.child());
      return inner == null ? null : inner.put("negated", !inner.get("negated").booleanValue());
    }
    if (filter instanceof IsNotNull present) {
      return condition(new Not(new IsNull(present.attribute())));
    }
    String operator = OPERATORS.get(filter.getClass());
    // The fields of such a filter are its column and its value, but IsNull has no value.
    Product fields = (Product) filter;
    if (operator == null || !COLUMNS.contains(fields.productElement(0))) {
      return null;
    }
    ObjectNode found = MAPPER.createObjectNode().put("column", (String) fields.productElement(0));
    Object value = fields.productArity() > 1 ? fields.productElement(1) : null;
    found.put("operator", operator).put("negated", false).set("value", MAPPER.valueToTree(plain(value)));
    return found;
  }

  private static Object plain(Object value) {
    if (value instanceof Object[] values) {
      return Arrays.stream(values).map(Conditions::plain).toArray();
    }
    Object time = value instanceof Timestamp one ? one.toInstant() : value;
    return time instanceof Instant one ? one.getEpochSecond() * 1_000_000 + one.getNano() / 1000 : value;
  }
}
