package io.mpbroker.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Describes the aggregates of a query, for which each task returns one row: its groups, then its functions.
 *
 * <p>Columns of groups have one value in a task. Without groups a task without records returns a row, too, so
 * that Spark adds a count of 0.
 */
record Aggregates(List<String> groups, List<Function> functions) implements Serializable {
  static final Set<String> CONSTANTS = Set.of("topic", "partition");
  private static final Set<String> NEVER_NULL =
      Set.of("*", "topic", "partition", "offset", "timestamp", "timestampType");
  private static final Map<String, DataType> COMPARED =
      Map.of("topic", DataTypes.StringType, "partition", DataTypes.IntegerType, "offset", DataTypes.LongType);

  /** Names the functions. */
  enum Kind {
    COUNT,
    MIN,
    MAX
  }

  /** Names a function and its column, which is never null. */
  record Function(Kind kind, String column) implements Serializable {}

  /** Returns the aggregates; null if tasks have to read records for them. */
  static Aggregates of(Aggregation query) {
    List<String> groups = Arrays.stream(query.groupByExpressions()).map(Aggregates::column).toList();
    List<Function> functions = Arrays.stream(query.aggregateExpressions()).map(Aggregates::function).toList();
    boolean isKnown = CONSTANTS.containsAll(groups) && functions.stream().allMatch(Aggregates::isKnown);
    return isKnown ? new Aggregates(groups, functions) : null;
  }

  /** Returns the column's name if the expression is a column, else an empty string. */
  static String column(Expression expression) {
    return expression instanceof NamedReference one ? String.join(".", one.fieldNames()) : "";
  }

  private static Function function(AggregateFunc function) {
    if (function instanceof CountStar) {
      return new Function(Kind.COUNT, "*");
    } else if (function instanceof Count count && !count.isDistinct()) {
      return new Function(Kind.COUNT, column(count.column()));
    } else if (function instanceof Min min) {
      return new Function(Kind.MIN, column(min.column()));
    }
    return function instanceof Max max ? new Function(Kind.MAX, column(max.column())) : null;
  }

  private static boolean isKnown(Function one) {
    return one != null && (one.kind() == Kind.COUNT ? NEVER_NULL : COMPARED.keySet()).contains(one.column());
  }

  StructType schema() {
    StructType schema = new StructType();
    for (String group : groups) {
      schema = schema.add(group, COMPARED.get(group));
    }
    for (Function one : functions) {
      String name = one.kind().name().toLowerCase(Locale.ROOT) + "(" + one.column() + ")";
      schema = schema.add(name, one.kind() == Kind.COUNT ? DataTypes.LongType : COMPARED.get(one.column()));
    }
    return schema;
  }

  boolean wantCount() {
    return functions.stream().anyMatch(one -> one.kind() == Kind.COUNT);
  }

  /** Returns true if the query wants this function of the column of offsets. */
  boolean want(Kind kind) {
    return functions.contains(new Function(kind, "offset"));
  }

  /** Makes the row of a range from counts of its beginning and its end; null if its group has no records. */
  InternalRow row(LogRange range, RangeCounter first, RangeCounter last) {
    boolean isEmpty = first.records() == 0;
    if (isEmpty && !groups.isEmpty()) {
      return null;
    }
    Object[] values = new Object[groups.size() + functions.size()];
    for (int i = 0; i < groups.size(); i++) {
      values[i] = value(range, groups.get(i), -1);
    }
    for (int i = 0; i < functions.size(); i++) {
      Function one = functions.get(i);
      long offset = one.kind() == Kind.MIN ? first.first() : last.last();
      Object compared = isEmpty ? null : value(range, one.column(), offset);
      values[groups.size() + i] = one.kind() == Kind.COUNT ? (Object) first.records() : compared;
    }
    return new GenericInternalRow(values);
  }

  private static Object value(LogRange range, String column, long offset) {
    return switch (column) {
      case "topic" -> UTF8String.fromString(range.topic());
      case "partition" -> range.partition();
      default -> offset;
    };
  }
}
