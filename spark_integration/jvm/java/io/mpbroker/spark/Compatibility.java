package io.mpbroker.spark;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds out whether the running Spark has the internal classes and methods that this jar uses.
 *
 * <p>These differ between versions and vendors. Spark's public API for data sources is not checked.
 */
final class Compatibility {
  private static final Logger LOG = LoggerFactory.getLogger("mpbroker.spark");
  private static final String SQL = "org.apache.spark.sql.";

  /** Lists each class with the methods that are used of it. A test compares the classes with the jar's. */
  static final List<Use> USES =
      List.of(
          new Use("org.apache.spark.SparkConf", "getAllWithPrefix"),
          // Its private methods name classes that Spark does not have.
          new Use("org.apache.spark.SparkEnv"),
          new Use("org.apache.spark.SparkRuntimeException"),
          new Use("org.apache.spark.api.python.PythonFunction"),
          new Use("org.apache.spark.api.python.PythonUtils$", "defaultPythonExec"),
          new Use("org.apache.spark.api.python.SpecialLengths", "PYTHON_EXCEPTION_THROWN"),
          new Use("org.apache.spark.deploy.SparkHadoopUtil", "get", "newConfiguration"),
          new Use("org.apache.spark.storage.StorageUtils"),
          new Use("org.apache.spark.unsafe.Platform"),
          new Use("org.apache.spark.unsafe.types.UTF8String"),
          new Use("org.apache.spark.util.Utils", "localHostName", "localCanonicalHostName"),
          new Use(SQL + "catalyst.expressions.GenericInternalRow"),
          new Use(SQL + "classic.RuntimeConfig", "get"),
          new Use(SQL + "classic.SparkSession", "active", "sessionState", "sparkContext"),
          new Use(SQL + "connector.catalog.CatalogV2Util", "v2ColumnsToStructType"),
          new Use(SQL + "errors.QueryCompilationErrors", "pythonDataSourceError"),
          new Use(SQL + "execution.datasources.DataSourceManager", "dataSourceExists", "lookupDataSource"),
          new Use(SQL + "execution.datasources.v2.python.PythonDataSourceV2", "setShortName", "getTable"),
          new Use(SQL + "execution.datasources.v2.python.PythonStreamingInputPartition", "pickedPartition"),
          new Use(SQL + "execution.datasources.v2.python.PythonStreamingSourceReadLimit"),
          new Use(SQL + "execution.datasources.v2.python.PythonTable", "newScanBuilder", "newWriteBuilder"),
          new Use(SQL + "execution.datasources.v2.python.UserDefinedPythonDataSource", "dataSourceCls"),
          // Spark 4.1 has no runnerConf, and its Python workers another protocol.
          new Use(SQL + "execution.python.PythonPlannerRunner", "runInPython", "runnerConf"),
          new Use(SQL + "execution.vectorized.ConstantColumnVector"),
          new Use(SQL + "execution.vectorized.OnHeapColumnVector"),
          new Use(SQL + "execution.vectorized.WritableColumnVector"),
          new Use(SQL + "internal.connector.SupportsStreamingUpdateAsAppend"),
          new Use(SQL + "internal.SessionState", "dataSourceManager"),
          new Use("com.fasterxml.jackson.databind.ObjectMapper"),
          new Use("net.razorvine.pickle.Pickler"),
          new Use("net.razorvine.pickle.Unpickler"),
          new Use("net.razorvine.pickle.objects.ClassDict"),
          new Use("scala.collection.immutable.Map$Map1"));

  private static final boolean COMPLETE = isComplete(USES);

  private Compatibility() {}

  record Use(String type, String... methods) {
    /** Returns the class or the first method that the running Spark lacks; null if it has all. */
    String missing() {
      try {
        Class<?> found = Class.forName(type, false, Compatibility.class.getClassLoader());
        Set<String> names =
            methods.length == 0
                ? Set.of()
                : Stream.of(found.getMethods(), found.getDeclaredMethods())
                    .flatMap(Arrays::stream)
                    .map(Method::getName)
                    .collect(Collectors.toSet());
        return Arrays.stream(methods)
            .filter(one -> !names.contains(one))
            .findFirst()
            .map(one -> type + "." + one)
            .orElse(null);
      } catch (ClassNotFoundException | LinkageError error) {
        return type;
      }
    }
  }

  /** Returns true if nothing is missing. The first call checks, and logs a warning if Python has to read. */
  static boolean isComplete() {
    return COMPLETE;
  }

  private static boolean isComplete(List<Use> uses) {
    String missing = uses.stream().map(Use::missing).filter(Objects::nonNull).findFirst().orElse(null);
    if (missing != null) {
      LOG.warn(
          "mpbroker's JVM reader is off, Python reads instead: this Spark ({}) has no {}, which it needs. "
              + "The jar is for Spark 4.2 and 4.3",
          org.apache.spark.package$.MODULE$.SPARK_VERSION(),
          missing);
    }
    return missing == null;
  }

  /** Returns true if Spark is registering a Python source. (Spark: DataSourceRegistration.) */
  static boolean isRegisteringPython() {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(one -> one.getClassName().endsWith(".DataSourceRegistration")));
  }
}
