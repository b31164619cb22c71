package io.mpbroker.spark;

import java.net.URISyntaxException;
import java.nio.file.Path;
import org.apache.spark.SparkContext;

/** Finds the file of these classes. */
final class Jar {
  private Jar() {}

  /**
   * Sends the jar to the executors, unless the session has done so.
   *
   * <p>A driver keeps the classes for the next session of its JVM, whose executors do not have them.
   */
  static void send(SparkContext context) {
    Path jar = path();
    if (!context.listJars().mkString(",").contains(jar.getFileName().toString())) {
      context.addJar(jar.toString());
    }
  }

  private static Path path() {
    try {
      return Path.of(Jar.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    } catch (URISyntaxException error) {
      throw new IllegalStateException(error);
    }
  }
}
