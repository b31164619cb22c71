package io.mpbroker.spark.fetch;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.ClientUtils;
import org.apache.kafka.common.memory.MemoryPool;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ByteBufferSend;
import org.apache.kafka.common.network.ChannelState;
import org.apache.kafka.common.network.NetworkReceive;
import org.apache.kafka.common.network.NetworkSend;
import org.apache.kafka.common.network.Selectable;
import org.apache.kafka.common.network.Selector;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;

/**
 * Logs in at brokers for the Python that plans, with what its own client cannot do, such as Kerberos.
 *
 * <p>Python connects to a Unix socket in a directory of this user. It sends a frame with broker and settings. The
 * answer is a frame with an error, or an empty one; then frames are passed on both ways, unchanged. (Python:
 * mpbroker/client/relay.py.)
 */
public final class Relay implements Closeable {
  private static final String BROKER = "broker";
  private static final long POLL_MS = 60_000;
  private static final long LOGIN_POLL_MS = 1_000;
  private static final long LOGIN_NS_MAX = 30_000_000_000L;
  private static final long PAUSE_NS = 1_000_000_000;
  private static final String PREFIX = "mpbroker-relay";
  /** The path of a socket has at most 107 bytes, and ends with a name. */
  private static final int PATH_CHARACTERS_MAX = 90;
  private static final int FRAME_BYTES_MAX = 1 << 30;
  private static String path;

  private final SocketChannel python;
  private final Queue<ByteBuffer> requests = new ConcurrentLinkedQueue<>();
  private final Metrics metrics = new Metrics();
  private Selector selector;
  private volatile boolean isOver;
  private boolean isSending;

  private Relay(SocketChannel python) {
    this.python = python;
  }

  /** Returns the path of the socket. The first call begins to listen. */
  public static synchronized String path() throws IOException {
    if (path == null) {
      Path directory = directory();
      Path socket = directory.resolve("socket");
      directory.toFile().deleteOnExit();
      socket.toFile().deleteOnExit();
      ServerSocketChannel listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
      listener.bind(UnixDomainSocketAddress.of(socket));
      start("mpbroker-relay", () -> accept(listener));
      path = socket.toString();
    }
    return path;
  }

  /** Returns a new directory. That of temporary files may have too long a path for a socket, as on YARN. */
  private static Path directory() throws IOException {
    Path usual = Files.createTempDirectory(PREFIX);
    if (usual.toString().length() <= PATH_CHARACTERS_MAX) {
      return usual;
    }
    Files.delete(usual);
    return Files.createTempDirectory(Path.of("/tmp"), PREFIX);
  }

  private static void accept(ServerSocketChannel listener) {
    while (true) {
      try {
        Relay relay = new Relay(listener.accept());
        start("mpbroker-relay-connection", relay::serve);
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

  private void serve() {
    try (this) {
      String refusal = connect(new ObjectMapper().readTree(read().array()));
      if (refusal == null) {
        return;
      }
      write(ByteBuffer.wrap(refusal.getBytes(StandardCharsets.UTF_8)));
      if (refusal.isEmpty()) {
        start("mpbroker-relay-requests", this::takeRequests);
        pump();
      }
    } catch (IOException error) {
      // Python or the broker has closed its connection: both are closed.
    }
  }

  /** Connects. Returns why the broker, or this client, refuses; null if the connection is lost. */
  private String connect(JsonNode wanted) throws IOException {
    Map<String, String> settings = new HashMap<>();
    JsonNode given = wanted.get("settings");
    given.fieldNames().forEachRemaining(name -> settings.put(name, given.get(name).textValue()));
    String server = wanted.get("server").textValue();
    LogContext log = new LogContext("[mpbroker relay] ");
    try {
      SaslClients.register();
      selector =
          new Selector(
              FRAME_BYTES_MAX,
              Selector.NO_IDLE_TIMEOUT_MS,
              metrics,
              Time.SYSTEM,
              "mpbroker-relay",
              Map.of(),
              false,
              false,
              ClientUtils.createChannelBuilder(ClientSettings.of(List.of(server), settings), Time.SYSTEM, log),
              MemoryPool.NONE,
              log);
    } catch (RuntimeException error) {
      return BrokerFailure.ofSettings(error).getMessage();
    }
    InetSocketAddress address = new InetSocketAddress(Utils.getHost(server), Utils.getPort(server));
    if (address.isUnresolved()) {
      return null;
    }
    selector.connect(BROKER, address, Selectable.USE_DEFAULT_BUFFER_SIZE, Selectable.USE_DEFAULT_BUFFER_SIZE);
    long deadlineNs = System.nanoTime() + LOGIN_NS_MAX;
    while (!selector.isChannelReady(BROKER)) {
      if (System.nanoTime() > deadlineNs) {
        return null;
      }
      selector.poll(LOGIN_POLL_MS);
      ChannelState lost = selector.disconnected().get(BROKER);
      if (lost != null) {
        return lost.exception() == null ? null : lost.exception().getMessage();
      }
    }
    return "";
  }

  private void takeRequests() {
    try {
      while (!isOver) {
        requests.add(read());
        selector.wakeup();
      }
    } catch (IOException error) {
      isOver = true;
      selector.wakeup();
    }
  }

  private void pump() throws IOException {
    while (!isOver && selector.disconnected().isEmpty()) {
      if (!isSending && !requests.isEmpty()) {
        selector.send(new NetworkSend(BROKER, ByteBufferSend.sizePrefixed(requests.poll())));
        isSending = true;
      }
      selector.poll(POLL_MS);
      isSending &= selector.completedSends().isEmpty();
      for (NetworkReceive answer : selector.completedReceives()) {
        write(answer.payload());
      }
    }
  }

  private ByteBuffer read() throws IOException {
    int bytes = fill(ByteBuffer.allocate(4)).getInt();
    if (bytes < 0 || bytes > FRAME_BYTES_MAX) {
      throw new IOException("a frame has " + bytes + " bytes");
    }
    return fill(ByteBuffer.allocate(bytes));
  }

  private ByteBuffer fill(ByteBuffer room) throws IOException {
    while (room.hasRemaining()) {
      if (python.read(room) < 0) {
        throw new EOFException();
      }
    }
    return room.flip();
  }

  private void write(ByteBuffer frame) throws IOException {
    ByteBuffer[] parts = {ByteBuffer.allocate(4).putInt(frame.remaining()).flip(), frame};
    while (parts[0].hasRemaining() || parts[1].hasRemaining()) {
      python.write(parts);
    }
  }

  @Override
  public void close() throws IOException {
    isOver = true;
    python.close();
    if (selector != null) {
      selector.close();
    }
    metrics.close();
  }
}
