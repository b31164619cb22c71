package io.mpbroker.spark;

import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Provides the Python source under a name of its own: that of this class.
 *
 * <p>{@link Source} cannot write by itself. Spark would then refuse its {@code save()} without a mode, since
 * tables that support batch writes take only append and overwrite.
 */
public final class PythonSink implements TableProvider {
  /** Appends the rows to topics. */
  static void append(Dataset<Row> rows, Map<String, String> options) {
    Cautions.checkLogin(options);
    rows.write().format(PythonSink.class.getName()).mode(SaveMode.Append).options(options).save();
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return SourceTable.inferSchema(options);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return SourceTable.python().getTable(schema, partitioning, properties);
  }
}
