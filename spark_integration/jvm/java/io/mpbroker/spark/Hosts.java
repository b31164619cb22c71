package io.mpbroker.spark;

import org.apache.spark.util.Utils;

/** Knows the names of this host. */
final class Hosts {
  private Hosts() {}

  /** Returns the names by which executors on this host may be registered. */
  static String[] ofThisProcess() {
    return new String[] {Utils.localHostName(), Utils.localCanonicalHostName()};
  }
}
