package io.mpbroker.spark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Wraps the table of the Python source: this jar reads, Python plans and writes. */
final class SourceTable implements Table, SupportsRead, SupportsWrite {
  /** The option of a read; SETTING is that of a session. If one is false, Python reads. */
  private static final String OPTION = "accelerated";

  private static final String SETTING = "spark.mpbroker.accelerated";

  /** Names the option with the URL of a bucket. (Python: reading/options.py.) */
  private static final String BUCKET = "mpbroker.bucket";

  private final PythonTable python;

  private SourceTable(PythonTable python) {
    this.python = python;
  }

  static SourceTable of(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    Cautions.checkLogin(properties);
    return new SourceTable((PythonTable) python().getTable(schema, partitioning, Logins.relayed(properties)));
  }

  static StructType inferSchema(CaseInsensitiveStringMap options) {
    return python().inferSchema(Logins.relayed(options));
  }

  /** Returns a new Python source. Throws SourceUnavailable if the Python of the driver has none. */
  static PythonDataSourceV2 python() {
    if (!SparkSession.active().sessionState().dataSourceManager().dataSourceExists(Source.NAME)) {
      throw new Failures.SourceUnavailable(
          "format(\"mpbroker\") needs its Python package on the driver, where it plans, and "
              + PythonUtils$.MODULE$.defaultPythonExec() + " does not have it. Run pip install "
              + "'mpbroker-server[spark]' for that Python, or name another one in PYSPARK_PYTHON",
          null);
    }
    PythonDataSourceV2 found = new PythonDataSourceV2();
    found.setShortName(Source.NAME);
    return found;
  }

  @Override
  public String name() {
    return python.name();
  }

  @Override
  public Column[] columns() {
    return python.columns();
  }

  /**
   * Returns what the table can do.
   *
   * <p>Without BATCH_WRITE, a {@code save()} of any mode calls {@link Source#createRelation}. With V1_BATCH_WRITE,
   * INSERT INTO calls {@link TopicWrite#toInsertableRelation}.
   */
  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(
        TableCapability.BATCH_READ,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.STREAMING_WRITE,
        TableCapability.V1_BATCH_WRITE);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Cautions.checkRead(given);
    CaseInsensitiveStringMap options = Logins.relayed(given);
    SparkSession session = SparkSession.active();
    if (!options.getBoolean(OPTION, Boolean.parseBoolean(session.conf().get(SETTING, "true")))) {
      return python.newScanBuilder(options);
    }
    String refusal = options.containsKey(BUCKET) ? Bucket.refusal(options.get(BUCKET)) : null;
    if (refusal != null) {
      Failures.reportPython(refusal);
      return python.newScanBuilder(options);
    }
    Jar.send(session.sparkContext());
    return new LogScanBuilder(python, options);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new TopicWrite.Builder(python.newWriteBuilder(info), info.options());
  }
}
