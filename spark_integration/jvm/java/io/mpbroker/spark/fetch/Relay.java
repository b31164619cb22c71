package io.mpbroker.spark.fetch;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.memory.MemoryPool;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ByteBufferSend;
import org.apache.kafka.common.network.ChannelState;
import org.apache.kafka.common.network.NetworkSend;
import org.apache.kafka.common.network.Selectable;
import org.apache.kafka.common.network.Selector;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Utils;

/**
 * Logs in at brokers for the planning Python process, in ways that Python's client lacks, such as Kerberos.
 *
 * <p>Python connects to a Unix socket in a directory of this user. It sends a frame with the settings of a client. The
 * answer is an empty frame, or one with an error. Then each frame is a request, whose answer is passed back before
 * the next request is read. (Python: mpbroker/client/relay.py.)
 */
public final class Relay {
  private static final String BROKER = "broker";
  private static final String NAME = "mpbroker-relay";
  private static final String SOCKET = "socket";
  private static final long START_MS = 60_000;
  private static final long POLL_MS = 1_000;
  private static final long LOGIN_NS_MAX = 30_000_000_000L;
  private static final long PAUSE_NS = 1_000_000_000;
  private static String path;

  private Relay() {}

  /** Returns the path of the socket. The first call begins to listen. */
  public static synchronized String path() throws IOException {
    if (path == null) {
      path = listen();
    }
    return path;
  }

  private static String listen() throws IOException {
    ServerSocketChannel listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    IOException failed = null;
    // The path of a socket has at most 107 bytes. That of temporary files may have more, as on YARN.
    for (String parent : List.of(System.getProperty("java.io.tmpdir"), "/tmp")) {
      removeDead(Path.of(parent));
      Path directory = Files.createTempDirectory(Path.of(parent), NAME);
      Path socket = directory.resolve(SOCKET);
      try {
        listener.bind(UnixDomainSocketAddress.of(socket));
        directory.toFile().deleteOnExit();
        socket.toFile().deleteOnExit();
        start("mpbroker-relay", () -> accept(listener));
        return socket.toString();
      } catch (IOException error) {
        Files.delete(directory);
        failed = error;
      }
    }
    listener.close();
    throw failed;
  }

  /** Removes what relays of killed JVMs have left. */
  private static void removeDead(Path parent) throws IOException {
    try (DirectoryStream<Path> directories = Files.newDirectoryStream(parent, NAME + "*")) {
      for (Path directory : directories) {
        try {
          if (isDead(directory)) {
            Files.deleteIfExists(directory.resolve(SOCKET));
            Files.delete(directory);
          }
        } catch (IOException error) {
          // Another user's, or another JVM has just removed it.
        }
      }
    }
  }

  private static boolean isDead(Path directory) throws IOException {
    // A young one may not listen yet.
    if (Files.getLastModifiedTime(directory).toMillis() > System.currentTimeMillis() - START_MS) {
      return false;
    }
    Path socket = directory.resolve(SOCKET);
    try (SocketChannel question = SocketChannel.open(StandardProtocolFamily.UNIX)) {
      question.configureBlocking(false);
      question.connect(UnixDomainSocketAddress.of(socket));
      return false;
    } catch (ConnectException refused) {
      return true;
    } catch (IOException error) {
      return Files.notExists(socket);
    }
  }

  private static void accept(ServerSocketChannel listener) {
    while (true) {
      try {
        SocketChannel python = listener.accept();
        start("mpbroker-relay-connection", () -> serve(python));
      } catch (IOException | OutOfMemoryError error) {
        // Descriptors or threads have run out, for example.
        LockSupport.parkNanos(PAUSE_NS);
      }
    }
  }

  private static void start(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.setContextClassLoader(Relay.class.getClassLoader());
    thread.start();
  }

  private static void serve(SocketChannel python) {
    try (DataInputStream requests = new DataInputStream(Channels.newInputStream(python));
        DataOutputStream answers = new DataOutputStream(Channels.newOutputStream(python));
        Metrics metrics = new Metrics()) {
      Map<String, String> settings = new ObjectMapper().readValue(read(requests), new TypeReference<>() {});
      try (Selector selector = connect(settings, metrics)) {
        write(answers, ByteBuffer.allocate(0));
        pass(selector, requests, answers);
      } catch (BrokerFailure error) {
        String text = (error.isRetriable() ? "lost " : "refused ") + error.getMessage();
        write(answers, ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8)));
      }
    } catch (IOException error) {
      // Python or the broker has closed its connection: both are closed.
    }
  }

  private static Selector connect(Map<String, String> settings, Metrics metrics) throws BrokerFailure, IOException {
    String server = settings.get("bootstrap.servers");
    Selector selector;
    try {
      var config = ClientSettings.of(List.of(server), settings);
      selector = Cluster.selector(config, metrics, MemoryPool.NONE, new LogContext("[mpbroker relay] "));
    } catch (RuntimeException error) {
      throw BrokerFailure.ofSettings(error);
    }
    try {
      logIn(selector, new InetSocketAddress(Utils.getHost(server), Utils.getPort(server)));
    } catch (BrokerFailure | IOException error) {
      selector.close();
      throw error;
    }
    return selector;
  }

  private static void logIn(Selector selector, InetSocketAddress address) throws BrokerFailure, IOException {
    if (address.isUnresolved()) {
      throw BrokerFailure.lost("the driver's host does not know the name " + address.getHostString());
    }
    selector.connect(BROKER, address, Selectable.USE_DEFAULT_BUFFER_SIZE, Selectable.USE_DEFAULT_BUFFER_SIZE);
    long deadlineNs = System.nanoTime() + LOGIN_NS_MAX;
    while (!selector.isChannelReady(BROKER)) {
      if (System.nanoTime() > deadlineNs) {
        throw BrokerFailure.lost("no login within " + LOGIN_NS_MAX / 1_000_000_000 + " s");
      }
      selector.poll(POLL_MS);
      ChannelState lost = selector.disconnected().get(BROKER);
      if (lost != null && lost.exception() != null) {
        throw BrokerFailure.fatal(lost.exception().getMessage(), lost.exception());
      } else if (lost != null) {
        throw BrokerFailure.lost("the connection was refused, or was lost during the login");
      }
    }
  }

  /** Passes requests and answers on until either side closes its connection. */
  private static void pass(Selector selector, DataInputStream requests, DataOutputStream answers) throws IOException {
    while (true) {
      ByteBuffer request = ByteBuffer.wrap(read(requests));
      // Notices a broker that has closed the connection meanwhile.
      selector.poll(0);
      if (!selector.isChannelReady(BROKER)) {
        return;
      }
      selector.send(new NetworkSend(BROKER, ByteBufferSend.sizePrefixed(request)));
      do {
        selector.poll(POLL_MS);
        if (!selector.disconnected().isEmpty()) {
          return;
        }
      } while (selector.completedReceives().isEmpty());
      write(answers, selector.completedReceives().iterator().next().payload());
    }
  }

  private static byte[] read(DataInputStream frames) throws IOException {
    byte[] frame = new byte[frames.readInt()];
    frames.readFully(frame);
    return frame;
  }

  private static void write(DataOutputStream frames, ByteBuffer frame) throws IOException {
    frames.writeInt(frame.remaining());
    frames.write(frame.array(), frame.arrayOffset() + frame.position(), frame.remaining());
  }
}
