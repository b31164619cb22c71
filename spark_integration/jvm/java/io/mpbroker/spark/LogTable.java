package io.mpbroker.spark;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Replaces a table of the Python source, and reads its batch scans if its files are on this host. */
final class LogTable implements Table, SupportsRead {
  private final PythonTable python;

  LogTable(PythonTable python) {
    this.python = python;
  }

  @Override
  public String name() {
    return python.name();
  }

  @Override
  public Column[] columns() {
    return python.columns();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ);
  }

  /** Plans the query in Python, and gives it back to the Python source if this reader cannot do it. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    StructType schema = CatalogV2Util.v2ColumnsToStructType(columns());
    Manifest manifest = Planner.plan(options, schema);
    return manifest.declined() == null
        ? new LogScanBuilder(manifest, schema)
        : python.newScanBuilder(options);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LogTable table && table.python.equals(python);
  }

  @Override
  public int hashCode() {
    return python.hashCode();
  }
}
