package io.mpbroker.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import net.razorvine.pickle.Pickler;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SpecialLengths;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.execution.python.PythonPlannerRunner;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Asks Python for the plan of a query.
 *
 * <p>It uses a worker of the kind that Spark itself starts for Python sources. Spark keeps it for the next query.
 */
final class Planner extends PythonPlannerRunner<Manifest> {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final byte[] request;

  private Planner(PythonFunction environment, byte[] request) {
    super(environment);
    this.request = request;
  }

  /**
   * Plans a query of the rows that pass known filters. Throws what Spark throws if Python cannot plan.
   *
   * <p>Declines the query if a method of this Spark has another signature than the jar was built for.
   */
  static Manifest plan(CaseInsensitiveStringMap options, StructType schema, Filter[] filters) {
    try {
      SparkSession session = SparkSession.active();
      // Only the environment of the source is used: which Python it is, and where its modules are.
      PythonFunction environment =
          session.sessionState().dataSourceManager().lookupDataSource(Source.NAME).dataSourceCls();
      Planner planner = new Planner(environment, request(options, schema, filters));
      return planner.runInPython(planner.runInPython$default$1());
    } catch (LinkageError error) {
      return Manifest.forPython("this version of Spark differs from those that the jar is for: " + error);
    }
  }

  private static byte[] request(CaseInsensitiveStringMap options, StructType schema, Filter[] filters) {
    ObjectNode request = JSON.createObjectNode();
    ObjectNode given = request.putObject("options");
    options.forEach(given::put);
    request.put("schema", schema.json());
    request.set("conditions", Conditions.json(filters));
    try {
      return JSON.writeValueAsBytes(request);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  public String workerModule() {
    return "pyspark_mpbroker.jvm_planner";
  }

  @Override
  public void writeToPython(DataOutputStream out, Pickler pickler) {
    try {
      out.writeInt(request.length);
      out.write(request);
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  @Override
  public Manifest receiveFromPython(DataInputStream in) {
    try {
      int length = in.readInt();
      if (length == SpecialLengths.PYTHON_EXCEPTION_THROWN()) {
        String text = new String(in.readNBytes(in.readInt()), StandardCharsets.UTF_8);
        throw sneaky(QueryCompilationErrors.pythonDataSourceError("plan", "read", text));
      }
      return Manifest.parse(in.readNBytes(length));
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  /** Throws an exception that Scala does not declare, which Java allows only in this way. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException sneaky(Throwable error) throws E {
    throw (E) error;
  }
}
