package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;

/** Holds the wanted columns while they are filled. A column that is not wanted is null. */
final class Columns implements AutoCloseable {
  /** The rows of a columnar batch. A log batch with more rows is not divided. */
  static final int ROWS = 16 << 10;

  final BytesVector key;
  final BytesVector value;
  final WritableColumnVector offset;
  final WritableColumnVector timestamp;
  final WritableColumnVector timestampType;
  final WritableColumnVector headers;
  private final WritableColumnVector headerKey;
  private final WritableColumnVector headerValue;
  private final StructType schema;
  private final LogRange range;
  private final ColumnarBatch batch;
  private int capacity = ROWS;

  Columns(StructType schema, LogRange range) {
    this.schema = schema;
    this.range = range;
    key = wants("key") ? new BytesVector(ROWS) : null;
    value = wants("value") ? new BytesVector(ROWS) : null;
    offset = writable("offset");
    timestamp = writable("timestamp");
    timestampType = writable("timestampType");
    headers = writable("headers");
    headerKey = ofHeaders("key");
    headerValue = ofHeaders("value");
    ColumnVector[] vectors = new ColumnVector[schema.size()];
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] = vector(schema.apply(i).name());
    }
    batch = new ColumnarBatch(vectors);
  }

  /** Returns true if no column needs anything of the records but their number. */
  boolean areOfThePartition() {
    return Stream.of(key, value, offset, timestamp, timestampType, headers).allMatch(Objects::isNull);
  }

  /** Makes room for this number of rows in total. */
  void reserve(int rows) {
    if (rows <= capacity) {
      return;
    }
    capacity = Math.max(rows, 2 * capacity);
    Stream.of(key, value).filter(Objects::nonNull).forEach(one -> one.reserve(capacity));
    Stream.of(offset, timestamp, timestampType, headers)
        .filter(Objects::nonNull)
        .forEach(one -> one.reserve(capacity));
  }

  void reset() {
    Stream.of(key, value).filter(Objects::nonNull).forEach(BytesVector::reset);
    if (headers != null) {
      headers.reset();
    }
  }

  /** Begins the headers of a row that has some. */
  void putHeaders(int row, int count) {
    headers.putArray(row, headers.arrayData().getElementsAppended(), count);
  }

  /** Adds the wanted fields of a header. Bytes of its key that are not UTF-8 become U+FFFD, as in Python. */
  void addHeader(long keyAddress, int keyBytes, long valueAddress, int valueBytes) {
    headers.arrayData().appendStruct(false);
    if (headerKey != null) {
      String key = new String(copy(keyAddress, keyBytes), StandardCharsets.UTF_8);
      byte[] text = key.getBytes(StandardCharsets.UTF_8);
      headerKey.appendByteArray(text, 0, text.length);
    }
    if (headerValue != null && valueBytes < 0) {
      headerValue.appendNull();
    } else if (headerValue != null) {
      headerValue.appendByteArray(copy(valueAddress, valueBytes), 0, valueBytes);
    }
  }

  /** Returns the rows as a Spark batch. Throws CorruptLog for a null that the schema forbids. */
  ColumnarBatch finish(int rows) {
    for (int i = 0; i < schema.size(); i++) {
      StructField field = schema.apply(i);
      if (!field.nullable() && batch.column(i).hasNull()) {
        throw new CorruptLog(
            range.topic() + "-" + range.partition() + " has records whose " + field.name()
                + " is null, but it is NOT NULL in the given schema. Make column " + field.name()
                + " nullable");
      }
    }
    batch.setNumRows(rows);
    return batch;
  }

  @Override
  public void close() {
    batch.close();
  }

  private boolean wants(String name) {
    return schema.getFieldIndex(name).isDefined();
  }

  private WritableColumnVector writable(String name) {
    return wants(name) ? new OnHeapColumnVector(ROWS, schema.apply(name).dataType()) : null;
  }

  /** Returns a field of the headers; null if Spark has pruned it, or all headers. */
  private WritableColumnVector ofHeaders(String name) {
    if (headers == null) {
      return null;
    }
    WritableColumnVector entries = headers.arrayData();
    Option<Object> place = ((StructType) entries.dataType()).getFieldIndex(name);
    return place.isDefined() ? (WritableColumnVector) entries.getChild((int) place.get()) : null;
  }

  private ColumnVector vector(String name) {
    return switch (name) {
      case "key" -> key;
      case "value" -> value;
      case "offset" -> offset;
      case "timestamp" -> timestamp;
      case "timestampType" -> timestampType;
      case "headers" -> headers;
      case "topic" -> {
        ConstantColumnVector topic = new ConstantColumnVector(ROWS, DataTypes.StringType);
        topic.setUtf8String(UTF8String.fromString(range.topic()));
        yield topic;
      }
      case "partition" -> {
        ConstantColumnVector partition = new ConstantColumnVector(ROWS, DataTypes.IntegerType);
        partition.setInt(range.partition());
        yield partition;
      }
      default -> throw new IllegalArgumentException("column '" + name + "' does not exist");
    };
  }

  private static byte[] copy(long address, int bytes) {
    byte[] copy = new byte[bytes];
    Platform.copyMemory(null, address, copy, Platform.BYTE_ARRAY_OFFSET, bytes);
    return copy;
  }
}
