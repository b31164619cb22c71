package io.mpbroker.spark;

import java.io.IOException;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.util.Arrays;
import org.apache.spark.SparkExecutorInfo;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.util.Utils;

/** Finds out whether tasks run on this host. */
final class Hosts {
  private Hosts() {}

  /** Returns the names by which executors on this host may be registered. */
  static String[] ofThisProcess() {
    return new String[] {Utils.localHostName(), Utils.localCanonicalHostName()};
  }

  /** Returns true if every executor runs on the host of the driver. A cluster without executors has some soon. */
  static boolean executorsAreHere(SparkSession session) {
    // The first of them is the driver.
    SparkExecutorInfo[] executors = session.sparkContext().statusTracker().getExecutorInfos();
    return session.sparkContext().isLocal()
        || executors.length > 1 && Arrays.stream(executors).allMatch(executor -> isHere(executor.host()));
  }

  private static boolean isHere(String host) {
    try {
      InetAddress address = InetAddress.getByName(host);
      return address.isLoopbackAddress() || NetworkInterface.getByInetAddress(address) != null;
    } catch (IOException error) {
      // A name that cannot be resolved here is the name of another host.
      return false;
    }
  }
}
