package io.mpbroker.spark;

import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The source that Spark finds for {@code format("mpbroker")} if this jar is on its class path.
 *
 * <p>It reads batches in the JVM. The Python source of the same name, which Spark ranks below it, gives the
 * schema, plans, and does the rest. Spark makes an object of this class whenever it looks for any format, so
 * nothing here refers to a class that a version of Spark may lack.
 */
public final class Source implements DataSourceRegister, TableProvider, CreatableRelationProvider {
  /** Names the format of both sources, here and in Python. */
  static final String NAME = "mpbroker";

  private static final String WITHDRAWN = NAME + " without its JVM reader";

  /**
   * Returns the name of the format.
   *
   * <p>If this Spark lacks what the reader needs, returns another name, so that Spark finds the Python source.
   * So it does while Spark registers the Python source, which Spark refuses under the name of a JVM source.
   */
  @Override
  public String shortName() {
    return Compatibility.isComplete() && !Compatibility.isRegisteringPython() ? NAME : WITHDRAWN;
  }

  /** Lets Python determine the columns from the options. */
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
    return SourceTable.of(schema, partitioning, properties);
  }

  /** Appends the rows by the Python sink. Throws if the mode is not one of those that Kafka's sink allows. */
  @Override
  public BaseRelation createRelation(
      SQLContext context,
      SaveMode mode,
      scala.collection.immutable.Map<String, String> options,
      Dataset<Row> rows) {
    if (mode == SaveMode.Overwrite || mode == SaveMode.Ignore) {
      throw new Failures.ModeRefused(mode);
    }
    PythonSink.append(rows, CollectionConverters.asJava(options));
    return new Written(context, rows.schema());
  }

  /** Stands for the written rows, since Spark wants a relation. Spark does not read from it. */
  private static final class Written extends BaseRelation {
    private final SQLContext context;
    private final StructType schema;

    Written(SQLContext context, StructType schema) {
      this.context = context;
      this.schema = schema;
    }

    @Override
    public SQLContext sqlContext() {
      return context;
    }

    @Override
    public StructType schema() {
      return schema;
    }
  }
}
