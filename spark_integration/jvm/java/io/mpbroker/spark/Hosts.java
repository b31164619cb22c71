package io.mpbroker.spark;

import java.io.IOException;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.util.Arrays;
import org.apache.spark.SparkExecutorInfo;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.util.Utils;

/** Which hosts tasks run on, and whether they are this one. */
final class Hosts {
  private Hosts() {}

  /** The names by which executors on this host may be registered. */
  static String[] ofThisProcess() {
    return new String[] {Utils.localHostName(), Utils.localCanonicalHostName()};
  }

  /** Whether each executor that there is runs on the host of the driver. */
  static boolean executorsAreHere(SparkSession session) {
    SparkExecutorInfo[] executors = session.sparkContext().statusTracker().getExecutorInfos();
    return Arrays.stream(executors).allMatch(executor -> isHere(executor.host()));
  }

  private static boolean isHere(String host) {
    try {
      InetAddress address = InetAddress.getByName(host);
      return address.isLoopbackAddress() || NetworkInterface.getByInetAddress(address) != null;
    } catch (IOException error) {
      // A name that means nothing here is that of another host.
      return false;
    }
  }
}
