package io.mpbroker.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * Has batch queries over the Python data source {@code mpbroker} read by the reader in this jar.
 *
 * <p>It is an entry of {@code spark.sql.extensions}. Spark refuses a JVM source that has the name of a Python
 * one, so this source has no name: it replaces the table of the Python source in analyzed plans. Streams and
 * writes keep the Python source.
 */
public final class Acceleration extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  /** Names the option of a read that is false to leave that read to Python. */
  static final String OPTION = "accelerated";

  private static final String FORMAT = "mpbroker";

  /** Registers the rule. Throws IllegalStateException if this jar was built for another version of Spark. */
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    checkVersion(org.apache.spark.package$.MODULE$.SPARK_VERSION());
    extensions.injectPostHocResolutionRule(session -> new ReplaceTables());
    return BoxedUnit.UNIT;
  }

  /** Checks the running version. Throws IllegalStateException if this jar was built for another one. */
  public static void checkVersion(String running) {
    String built = builtFor();
    if (!built.equals(running)) {
      throw new IllegalStateException(
          "mpbroker's JVM reader was built for Spark " + built + ", this is Spark " + running
              + ". Install pyspark==" + built + ", build the jar again with make setup-spark, or leave " + FORMAT
              + "'s jar and spark.sql.extensions out to read with Python");
    }
  }

  private static String builtFor() {
    try (InputStream text = Acceleration.class.getResourceAsStream("built-for-spark")) {
      return new String(text.readAllBytes(), StandardCharsets.US_ASCII).strip();
    } catch (IOException error) {
      throw new IllegalStateException("the jar of mpbroker's JVM reader cannot be read: " + error, error);
    }
  }

  /** Replaces each table of the Python source that a batch query reads by a {@link LogTable}. */
  private static final class ReplaceTables extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.resolveOperatorsUp(new Replacement());
    }
  }

  private static final class Replacement extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
    @Override
    public boolean isDefinedAt(LogicalPlan plan) {
      // Relations of streams have other classes, and a plan does not have its target among its children.
      return plan instanceof DataSourceV2Relation relation
          && relation.table() instanceof PythonTable table
          && table.name().equals(FORMAT)
          && relation.options().getBoolean(OPTION, true);
    }

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      DataSourceV2Relation relation = (DataSourceV2Relation) plan;
      return relation.copy(
          new LogTable((PythonTable) relation.table()),
          relation.output(),
          relation.catalog(),
          relation.identifier(),
          relation.options(),
          relation.timeTravelSpec());
    }
  }
}
