package io.mpbroker.spark;

import com.github.luben.zstd.ZstdInputStream;
import io.mpbroker.spark.Failures.Malformed;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.GZIPInputStream;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.xerial.snappy.Snappy;

/** Unpacks the records of a batch with the libraries that Spark brings (Kafka: common/compress). */
final class Codecs {
  /** The most bytes that a batch may unpack to. More is an error, as in Python. */
  private static final int LIMIT_BYTES = 100 << 20;

  private static final byte[] XERIAL = {(byte) 0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
  private static final int XERIAL_HEADER_BYTES = 16;
  private static final String[] NAMES = {"none", "gzip", "snappy", "lz4", "zstd"};

  /** The unpacked bytes. The array is kept between batches and grows to the size of the largest. */
  private byte[] unpacked = new byte[1 << 20];

  private int size;

  /** Unpacks the stream into {@link #bytes}, from 0 to {@link #size}. */
  void unpack(int codec, ByteBuffer packed) throws Malformed {
    if (codec >= NAMES.length) {
      throw new Malformed("its compression codec is not known");
    }
    byte[] source = new byte[packed.remaining()];
    packed.get(source);
    size = 0;
    try {
      if (codec == 2) {
        snappy(source);
      } else {
        try (InputStream stream = stream(codec, new ByteArrayInputStream(source))) {
          drain(stream);
        }
      }
    } catch (IOException | RuntimeException error) {
      // The libraries throw exceptions of both kinds for bytes that they cannot read.
      throw new Malformed(NAMES[codec] + ": " + error.getMessage());
    }
  }

  byte[] bytes() {
    return unpacked;
  }

  int size() {
    return size;
  }

  private static InputStream stream(int codec, InputStream source) throws IOException {
    return switch (codec) {
      case 1 -> new GZIPInputStream(source, 8 << 10);
      case 3 -> new LZ4FrameInputStream(source);
      default -> new ZstdInputStream(source);
    };
  }

  private void drain(InputStream stream) throws IOException {
    while (true) {
      ensure(size + 1);
      int read = stream.read(unpacked, size, unpacked.length - size);
      if (read < 0) {
        return;
      }
      size += read;
    }
  }

  /** Unpacks snappy in the framing of snappy-java, or a bare block, which some clients send. */
  private void snappy(byte[] source) throws IOException {
    if (!Arrays.equals(Arrays.copyOf(source, XERIAL.length), XERIAL)) {
      block(source, 0, source.length);
      return;
    }
    if (source.length < XERIAL_HEADER_BYTES) {
      throw new IOException("the stream header is cut off");
    }
    ByteBuffer blocks = ByteBuffer.wrap(source).position(XERIAL_HEADER_BYTES);
    while (blocks.hasRemaining()) {
      int bytes = blocks.remaining() < 4 ? -1 : blocks.getInt();
      if (bytes <= 0 || bytes > blocks.remaining()) {
        throw new IOException("a block is cut off");
      }
      block(source, blocks.position(), bytes);
      blocks.position(blocks.position() + bytes);
    }
  }

  private void block(byte[] source, int from, int bytes) throws IOException {
    int holds = Snappy.uncompressedLength(source, from, bytes);
    ensure((long) size + holds);
    size += Snappy.uncompress(source, from, bytes, unpacked, size);
  }

  private void ensure(long wanted) throws IOException {
    if (wanted > LIMIT_BYTES + 1) {
      throw new IOException("holds more than the bound of " + LIMIT_BYTES + " bytes");
    }
    if (wanted > unpacked.length) {
      int larger = (int) Math.min(Math.max(wanted, 2L * unpacked.length), LIMIT_BYTES + 1);
      unpacked = Arrays.copyOf(unpacked, larger);
    }
  }
}
